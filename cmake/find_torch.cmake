# Where torch lies. Read when Espalier is built and, installed beside espalierConfig.cmake, when a program that
# links Espalier is configured: no path of the machine that built the library is needed.
#
#   espalier_find_torch(FOLDER VERSION)        sets both in the caller, to nothing where there is none; then
#                                              espalier_tried is the Python that was asked
#   espalier_torch_libraries(target FOLDER)    links target (INTERFACE) with that torch, and finds it at run time
#
# torch's own CMake package stops on a CUDA build of torch where no CUDA toolkit is installed, and that is the
# build most people have. So this asks Python, or takes Torch_DIR.

function(espalier_find_torch folder_variable version_variable)
  set(folder)
  if(DEFINED ENV{ESPALIER_PYTHON})
    set(python $ENV{ESPALIER_PYTHON})
  elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  else()
    set(python python3)
  endif()
  if(Torch_DIR AND NOT DEFINED CACHE{ESPALIER_PYTHON})  # …/torch/share/cmake/Torch
    get_filename_component(folder ${Torch_DIR}/../../.. ABSOLUTE)
  else()
    set(ESPALIER_PYTHON ${python} CACHE STRING "The Python that has the torch package")
    # Finds the package without importing it: an import takes seconds.
    execute_process(
      COMMAND ${ESPALIER_PYTHON} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT folder)
      set(espalier_tried ${ESPALIER_PYTHON} PARENT_SCOPE)
      unset(ESPALIER_PYTHON CACHE)  # look again next time: torch may have been installed in between
    endif()
  endif()
  set(version)
  if(folder AND EXISTS ${folder}/version.py)
    file(STRINGS ${folder}/version.py version REGEX "^__version__")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
  endif()
  set(${folder_variable} ${folder} PARENT_SCOPE)
  set(${version_variable} ${version} PARENT_SCOPE)
endfunction()

# --as-needed: a program that calls nothing of libtorch does not load it, which would cost it a quarter of a second
# at every start. libtorch_cuda.so registers its kernels when it is loaded; nobody calls it by name. libstdc++ stands before
# torch, whose libraries export std::filesystem of the older compiler that built them: a program that got that copy would
# crash in it (seen with torch 2.11 for CUDA 13 in remove_all).
function(espalier_torch_libraries target folder)
  target_link_options(${target} INTERFACE -Wl,--as-needed -Wl,-rpath,${folder}/lib)
  target_link_libraries(${target} INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state
    ${folder}/lib/libtorch.so ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
  if(EXISTS ${folder}/lib/libtorch_cuda.so)
    target_link_libraries(${target} INTERFACE
      -Wl,--no-as-needed ${folder}/lib/libtorch_cuda.so ${folder}/lib/libc10_cuda.so)
    target_link_options(${target} INTERFACE -Wl,--allow-shlib-undefined)
  endif()
endfunction()
