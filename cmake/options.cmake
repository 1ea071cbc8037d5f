option(ESPALIER_TORCH "Build the runtime, which needs libtorch" ON)
option(ESPALIER_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ESPALIER_INSTALL "Install the library and the program" ${PROJECT_IS_TOP_LEVEL})
option(ESPALIER_BENCH "Build the benchmarks" OFF)
option(ESPALIER_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(ESPALIER_QUICK_BUILD "Join the files of the simulator too (built sooner, 2 % slower), and bear with what g++ fears at -O1" OFF)
option(ESPALIER_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(ESPALIER_SANITIZE_THREADS "Build with ThreadSanitizer" OFF)

# All that is set here holds for Espalier's own folders: a project that adds Espalier keeps its own settings.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  find_program(CCACHE ccache)
endif()

if(CCACHE AND PROJECT_IS_TOP_LEVEL)
  # A precompiled header misses the cache without these; the base folder lets checkouts share it; the inode
  # cache spares the hashing of libtorch's precompiled header (0.4 GB) for every file. With CCACHE_DEPEND the
  # compiler itself tells what a file includes: nothing is preprocessed only to be looked up.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1 CCACHE_DEPEND=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE})
endif()

# Same bytes out for any compiler (docs/semantics.md, exactness): no fused multiply-add behind our back.
add_compile_options(-ffp-contract=off)
set(ESPALIER_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(PROJECT_IS_TOP_LEVEL)  # another compiler's new warning must not stop a project that adds Espalier
  list(APPEND ESPALIER_WARNINGS -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms: on std::string in g++ 12 (GCC bug 105651), on std::vector inside torch in g++ 13.
  list(APPEND ESPALIER_WARNINGS -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
  if(ESPALIER_QUICK_BUILD)  # at -O1 it takes an optional's value, read only where there is one, for uninitialized
    list(APPEND ESPALIER_WARNINGS -Wno-maybe-uninitialized)
  endif()
endif()
if(ESPALIER_SANITIZE OR ESPALIER_SANITIZE_THREADS)
  # Tests take fewer cases then (testing/small_cases.h), and kernels have one version. No macro of the compilers does:
  # __SANITIZE_ADDRESS__ is g++'s alone.
  # _GLIBCXX_ASSERTIONS: the standard library checks each index and each front() of its containers.
  add_compile_definitions(ESPALIER_SANITIZED _GLIBCXX_ASSERTIONS)
endif()
if(ESPALIER_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A third of g++'s time to compile. AddressSanitizer stops at a null pointer too. clang, which the presets name, has
    # all checks in our own code alone, which takes a quarter off its time.
    add_compile_options(-fno-sanitize=null,alignment,object-size,vptr)
  else()
    add_compile_options(-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/ours_alone.txt)
  endif()
endif()
if(ESPALIER_SANITIZE_THREADS)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND ESPALIER_WARNINGS -Wno-tsan)  # it sees no fences: of shared_ptr and the like in headers not ours
  endif()
endif()
# What is compiled for a short build, not for a fast program: tests, since the library keeps its own level; modules where
# little time is spent (app, report, the command lines); in sanitized builds what sees libtorch, which takes the time there.
# -O1 is the least that a precompiled header of an optimised build serves.
set(ESPALIER_TEST_OPTIONS -O0)
set(ESPALIER_TORCH_TEST_OPTIONS -O1)
set(ESPALIER_TORCH_OPTIONS)
set(ESPALIER_COLD_OPTIONS -O1)
if(ESPALIER_SANITIZE OR ESPALIER_SANITIZE_THREADS)
  set(ESPALIER_TORCH_TEST_OPTIONS -O0)
  set(ESPALIER_TORCH_OPTIONS -O0)
  set(ESPALIER_COLD_OPTIONS -O0)
endif()
if(ESPALIER_SANITIZE_THREADS)  # whose tests search for long themselves
  set(ESPALIER_TEST_OPTIONS -O1)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND PROJECT_IS_TOP_LEVEL)
  # g++ collects garbage only beyond this many KB: a file takes about a tenth less time and 150 MB more.
  add_compile_options("SHELL:--param ggc-min-heapsize=1000000")
endif()
if(ESPALIER_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
