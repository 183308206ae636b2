# GLSL to SPIR-V to words in a C file: glslangValidator, then spirv-val, then one array per (kernel, access).
# The arrays of a kernel are indexed by access: [0] descriptors, [1] device addresses.

find_program(GLSLANG NAMES glslangValidator glslang REQUIRED)
find_program(SPIRV_VAL spirv-val REQUIRED)

# vkattn_spirv(SOURCE_VARIABLE folder kernel...): adds the generated C file of each kernel to the list.
function(vkattn_spirv result folder)
  file(GLOB includes CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shaders/lib/*.glsl
       ${PROJECT_SOURCE_DIR}/shaders/shared/*.h)
  foreach(kernel ${ARGN})
    set(modules)
    foreach(access 0 1)
      set(module ${PROJECT_BINARY_DIR}/spirv/${kernel}.${access}.spv)
      add_custom_command(
        OUTPUT ${module}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/spirv
        COMMAND ${GLSLANG} -V --quiet --target-env spirv1.3 -DVKA_ADDRESS=${access} -I${PROJECT_SOURCE_DIR}/shaders
                ${PROJECT_SOURCE_DIR}/${folder}/${kernel}.comp -o ${module}
        COMMAND ${SPIRV_VAL} --target-env vulkan1.1 ${module}
        DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/${kernel}.comp ${includes}
        COMMENT "Compiling ${kernel}.comp (VKA_ADDRESS=${access})"
        VERBATIM)
      list(APPEND modules ${module})
    endforeach()
    set(source ${PROJECT_BINARY_DIR}/spirv/${kernel}.spirv.c)
    add_custom_command(
      OUTPUT ${source}
      COMMAND ${CMAKE_COMMAND} -DKERNEL=${kernel} -DOUTPUT=${source} "-DMODULES=${modules}" -P
              ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
      DEPENDS ${modules} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
      COMMENT "Embedding ${kernel}"
      VERBATIM)
    list(APPEND ${result} ${source})
  endforeach()
  set(${result} ${${result}} PARENT_SCOPE)
endfunction()
