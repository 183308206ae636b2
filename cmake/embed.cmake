# Writes OUTPUT: the words of each file in MODULES as C arrays, and the table vkattn_spirv_KERNEL of them. Without modules
# the table says why there are none: MISSING.
set(text "/* Made by cmake/embed.cmake. */\n#include \"kernel.h\"\n\nextern const struct spirv vkattn_spirv_${KERNEL}[];\n\n")
set(table "const struct spirv vkattn_spirv_${KERNEL}[] = {\n")
set(index 0)
foreach(module ${MODULES})
  file(READ ${module} hex HEX)
  # Little-endian bytes to words.
  string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," words "${hex}")
  string(REGEX REPLACE "(0x........,0x........,0x........,0x........,0x........,0x........,0x........,0x........,)"
         "\\1\n" words "${words}")
  string(APPEND text "static const uint32_t words_${index}[] = {\n${words}};\n\n")
  string(APPEND table "    {words_${index}, sizeof words_${index} / sizeof *words_${index}, NULL},\n")
  math(EXPR index "${index} + 1")
endforeach()
if(MISSING)
  string(APPEND table "    {NULL, 0, \"${MISSING}\"},\n    {NULL, 0, \"${MISSING}\"},\n")
endif()
file(WRITE ${OUTPUT} "${text}${table}};\n")
