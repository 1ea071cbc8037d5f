#pragma once

// Files as part of the program: the assembler takes their bytes as they are. cmake/module.cmake, esp_embed,
// says where a file is and that the source depends on it.
//
//   ESP_EMBEDDED(espalier_guide, ESPALIER_GUIDE);   // outside of namespaces
//   … ESP_BYTES_OF(espalier_guide) …                // a std::string_view

#include <cstddef>
#include <string_view>

#define ESP_EMBEDDED(name, path)     \
  __asm__(                           \
      ".section .rodata\n"           \
      ".balign 8\n" #name            \
      "_begin:\n"                    \
      ".incbin \"" path "\"\n" #name \
      "_end:\n"                      \
      ".previous\n");                \
  extern "C" {                       \
  extern const char name##_begin[];  \
  extern const char name##_end[];    \
  }                                  \
  static_assert(true)

#define ESP_BYTES_OF(name) std::string_view(name##_begin, static_cast<std::size_t>(name##_end - name##_begin))
