# libtorch from an installed `torch` Python package.
#
# cmake/find_torch.cmake finds it. This file defines
#
#   espalier_libtorch          headers (as system headers), defines, and espalier_torch_libraries
#   espalier_torch_libraries   what a program links: libraries and run path
#   espalier_torch_pch         one precompiled header, shared by every target that includes torch
#   esp_use_torch(target)      gives headers, libraries and precompiled header to a target
#
# A target with torch's include folder sees torch's own copy of fmt, so it must not link Debian's fmt.

include(${PROJECT_SOURCE_DIR}/cmake/find_torch.cmake)
espalier_find_torch(torch_folder torch_version)
if(NOT torch_folder)
  message(FATAL_ERROR
    "'${espalier_tried}' has no torch package, and ESPALIER_TORCH is ON.\n"
    "Either run scripts/setup, which installs one into .venv;\n"
    "or name a Python that has torch 2.11 or newer: -DESPALIER_PYTHON=/path/to/python;\n"
    "or build the planner and the simulator only: -DESPALIER_TORCH=OFF (preset notorch).")
endif()
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR
    "torch ${torch_version} in ${torch_folder} is too old: Espalier needs 2.11 or newer.\n"
    "Run scripts/setup, or update that torch, or use -DESPALIER_TORCH=OFF.")
endif()

# Some wheels ship only part of their headers. Say so here, not in the middle of a build.
set(missing)
foreach(file
    include/ATen/ATen.h
    include/ATen/core/dispatch/Dispatcher.h
    include/c10/core/Allocator.h
    include/torch/csrc/autograd/autograd.h
    include/torch/csrc/autograd/engine.h
    include/caffe2/serialize/inline_container.h
    include/torch/csrc/distributed/c10d/TCPStore.hpp
    include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp
    lib/libtorch.so
    lib/libtorch_cpu.so
    lib/libc10.so)
  if(NOT EXISTS ${torch_folder}/${file})
    list(APPEND missing ${file})
  endif()
endforeach()
if(missing)
  string(REPLACE ";" "\n  " missing "${missing}")
  message(FATAL_ERROR
    "torch ${torch_version} in ${torch_folder} is incomplete. Missing:\n  ${missing}\n"
    "Install a full wheel (scripts/setup does) and name its Python: -DESPALIER_PYTHON=/path/to/python;\n"
    "or build without the runtime: -DESPALIER_TORCH=OFF.")
endif()

# The C++ ABI of std::string. Every wheel since 2.7 has the new one; a torch built by hand may not.
set(torch_abi 1)
if(EXISTS ${torch_folder}/share/cmake/Torch/TorchConfig.cmake)
  file(STRINGS ${torch_folder}/share/cmake/Torch/TorchConfig.cmake abi_line REGEX "GLIBCXX_USE_CXX11_ABI=0")
  if(abi_line)
    set(torch_abi 0)
  endif()
endif()

add_library(espalier_torch_libraries INTERFACE)
espalier_torch_libraries(espalier_torch_libraries ${torch_folder})

# FMT_HEADER_ONLY: torch ships fmt's headers, not its library. The stubs stand in for five Gloo headers that
# torch includes and does not ship.
add_library(espalier_libtorch INTERFACE)
target_include_directories(espalier_libtorch SYSTEM INTERFACE
  ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include
  ${PROJECT_SOURCE_DIR}/cmake/torch/stubs)
target_compile_definitions(espalier_libtorch INTERFACE
  USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY=1 _GLIBCXX_USE_CXX11_ABI=${torch_abi})
target_link_libraries(espalier_libtorch INTERFACE espalier_torch_libraries)
target_compile_features(espalier_libtorch INTERFACE cxx_std_20)

# A CUDA build of torch is used through headers that every build has: a machine without a GPU or a CUDA toolkit can
# build and run the result.
set(torch_kind "CPU")
if(EXISTS ${torch_folder}/lib/libtorch_cuda.so)
  set(torch_kind "CUDA")
endif()
message(STATUS "torch ${torch_version} (${torch_kind}) in ${torch_folder}")

# The one precompiled header. Users must compile with the same options and defines, or gcc refuses it
# (-Winvalid-pch, an error here); extra defines that the header does not use are fine. The angle brackets
# keep the name of the checkout out of the generated file, so that checkouts share ccache entries.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cc CONTENT "// Only carries the precompiled header.\n")
add_library(espalier_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cc)
target_include_directories(espalier_torch_pch PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(espalier_torch_pch PRIVATE espalier_libtorch)
target_compile_options(espalier_torch_pch PRIVATE ${ESPALIER_WARNINGS} ${ESPALIER_TORCH_OPTIONS})
set_target_properties(espalier_torch_pch PROPERTIES UNITY_BUILD OFF)
target_precompile_headers(espalier_torch_pch PRIVATE <espalier/runtime/torch_pch.h>)

function(esp_use_torch target)
  target_link_libraries(${target} PRIVATE espalier_libtorch nlohmann_json::nlohmann_json)
  target_compile_options(${target} PRIVATE ${ESPALIER_TORCH_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM espalier_torch_pch)
endfunction()
