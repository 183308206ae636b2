# GLSL to SPIR-V to words in a C file: glslangValidator, then spirv-val, then one array per (kernel, access).
# The arrays of a kernel are indexed by access: [0] descriptors, [1] device addresses.
#
# A kernel that the compiler is too old for is left out, with the reason in its place: vkattn_spirv_KERNEL[].missing.
# tools/glslang puts newer programs into .tools/, where they are found.

set(VKATTN_GLSLANG "" CACHE FILEPATH "glslangValidator; empty: the system's, or where that is too old .tools/bin/glslang")
set(VKATTN_SPIRV_VAL "" CACHE FILEPATH "spirv-val, likewise")
find_program(GLSLANG NAMES glslangValidator glslang)
find_program(SPIRV_VAL spirv-val)

# compiles_matrices(glslang val): sets matrices_missing to what keeps them from GL_KHR_cooperative_matrix, or "".
function(compiles_matrices glslang val)
  set(module ${PROJECT_BINARY_DIR}/coopmat_probe.spv)
  execute_process(COMMAND ${glslang} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
  set(reason "")
  execute_process(COMMAND ${glslang} -V --target-env spirv1.3 ${PROJECT_SOURCE_DIR}/cmake/coopmat_probe.comp -o ${module}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(reason "glslang ${version} does not know GL_KHR_cooperative_matrix")
  else()
    execute_process(COMMAND ${val} --target-env vulkan1.1 ${module} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
      set(reason "spirv-val does not know SPV_KHR_cooperative_matrix")
    endif()
  endif()
  set(matrices_missing "${reason}" PARENT_SCOPE)
endfunction()

if(VKATTN_GLSLANG)
  set(GLSLANG ${VKATTN_GLSLANG})
endif()
if(VKATTN_SPIRV_VAL)
  set(SPIRV_VAL ${VKATTN_SPIRV_VAL})
endif()
set(own_tools ${PROJECT_SOURCE_DIR}/.tools/bin)
if(NOT GLSLANG AND NOT EXISTS ${own_tools}/glslang)
  message(FATAL_ERROR "glslangValidator was not found: package glslang-tools, or tools/glslang, or VKATTN_GLSLANG")
endif()
if(NOT SPIRV_VAL AND NOT EXISTS ${own_tools}/spirv-val)
  message(FATAL_ERROR "spirv-val was not found: package spirv-tools, or tools/glslang, or VKATTN_SPIRV_VAL")
endif()
set(matrices_missing "there is no glslang")
if(GLSLANG AND SPIRV_VAL)
  compiles_matrices(${GLSLANG} ${SPIRV_VAL})
endif()
if(matrices_missing AND NOT VKATTN_GLSLANG AND EXISTS ${own_tools}/glslang)
  set(system_missing "${matrices_missing}")
  compiles_matrices(${own_tools}/glslang ${own_tools}/spirv-val)
  if(NOT matrices_missing OR NOT GLSLANG)
    message(STATUS "Shaders are compiled by .tools/bin/glslang: ${system_missing}")
    set(GLSLANG ${own_tools}/glslang)
    set(SPIRV_VAL ${own_tools}/spirv-val)
  endif()
endif()
set(VKATTN_MATRIX_KERNELS fwd_coopmat probe_matrix)
if(matrices_missing)
  list(JOIN VKATTN_MATRIX_KERNELS ", " names)
  message(STATUS "Not in this build: ${names}: ${matrices_missing}; tools/glslang gets one that does")
endif()

# vkattn_embed(kernel missing module...): a generated C file, ${kernel}.spirv.c.
function(vkattn_embed kernel missing)
  set(source ${PROJECT_BINARY_DIR}/spirv/${kernel}.spirv.c)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DKERNEL=${kernel} -DOUTPUT=${source} "-DMODULES=${ARGN}" "-DMISSING=${missing}" -P
            ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    COMMENT "Embedding ${kernel}"
    VERBATIM)
endfunction()

# vkattn_spirv(SOURCE_VARIABLE folder kernel...): adds the generated C file of each kernel to the list.
function(vkattn_spirv result folder)
  file(GLOB includes CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shaders/lib/*.glsl
       ${PROJECT_SOURCE_DIR}/shaders/shared/*.h)
  foreach(kernel ${ARGN})
    list(APPEND ${result} ${PROJECT_BINARY_DIR}/spirv/${kernel}.spirv.c)
    if(matrices_missing AND kernel IN_LIST VKATTN_MATRIX_KERNELS)
      vkattn_embed(${kernel} ${matrices_missing})
      continue()
    endif()
    set(modules)
    foreach(access 0 1)
      set(module ${PROJECT_BINARY_DIR}/spirv/${kernel}.${access}.spv)
      add_custom_command(
        OUTPUT ${module}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/spirv
        COMMAND ${GLSLANG} -V --quiet --target-env spirv1.3 -DVKA_ADDRESS=${access} -I${PROJECT_SOURCE_DIR}/shaders
                ${PROJECT_SOURCE_DIR}/${folder}/${kernel}.comp -o ${module}.new
        COMMAND ${SPIRV_VAL} --target-env vulkan1.1 ${module}.new
        COMMAND ${CMAKE_COMMAND} -E rename ${module}.new ${module} # not before it is known to be good
        DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/${kernel}.comp ${includes} ${GLSLANG}
        COMMENT "Compiling ${kernel}.comp (VKA_ADDRESS=${access})"
        VERBATIM)
      list(APPEND modules ${module})
    endforeach()
    vkattn_embed(${kernel} "" ${modules})
  endforeach()
  set(${result} ${${result}} PARENT_SCOPE)
endfunction()
