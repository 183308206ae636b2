# Writes OUTPUT: the words of each file in MODULES as C arrays, and the table vkattn_spirv_KERNEL of them. Without modules
# the table says why there are none: MISSING.
#
# Most words of SPIR-V are small numbers. A word below 0x8000 is one unit of 16 bits; others are two, 0x8000 + the upper
# half and the lower half, or three, 0xffff and both halves, where the upper half is 0x7fff or more.
# vkattn_spirv_words (src/kernels.c) turns them back.
set(text "/* Made by cmake/embed.cmake. */\n#include \"kernel.h\"\n\nextern const struct spirv vkattn_spirv_${KERNEL}[];\n\n")
set(table "const struct spirv vkattn_spirv_${KERNEL}[] = {\n")
set(index 0)
foreach(module ${MODULES})
  file(READ ${module} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR count "${digits} / 8")
  # Little-endian bytes to words; then each kind of word in turn, those that are done marked by "|".
  string(REGEX REPLACE "(..)(..)(..)(..)" "\\4\\3\\2\\1," units "${hex}")
  string(REGEX REPLACE "0000([0-7]...)," "0x\\1|" units "${units}")
  string(REGEX REPLACE "(7fff|[89a-f]...)(....)," "0xffff|0x\\1|0x\\2|" units "${units}")
  string(REGEX REPLACE "([0-7]...)(....)," "\n0x8000+0x\\1|0x\\2|" units "${units}")
  string(REPLACE "|" "," units "${units}")
  string(APPEND text "static const uint16_t units_${index}[] = {${units}};\n\n")
  string(APPEND table "    {units_${index}, ${count}, NULL},\n")
  math(EXPR index "${index} + 1")
endforeach()
if(MISSING)
  string(APPEND table "    {NULL, 0, \"${MISSING}\"},\n    {NULL, 0, \"${MISSING}\"},\n")
endif()
file(WRITE ${OUTPUT} "${text}${table}};\n")
