include(GoogleTest OPTIONAL)

# esp_discover_tests(target prefix PROPERTY VALUE…): the tests of a program in four parts, since most are shorter than the
# start of their program. Suites, and instances of suites, whose name begins with Long are one by one and have the label
# `all`: scripts/test leaves them to scripts/test --all. A test that is skipped fails (scripts/test). Tests run side by side:
# threads of libtorch that wait give their core away. They see no GPU, whatever machine they run on; suites whose name begins
# with Cuda are for those that do (tests/CMakeLists.txt).
function(esp_discover_tests target prefix)
  foreach(part RANGE 3)
    add_test(NAME ${prefix}.part${part} COMMAND ${target} "--gtest_filter=-Long*:Cuda*" --gtest_brief=1)
    set_tests_properties(${prefix}.part${part} PROPERTIES ${ARGN} COST 500 TIMEOUT 900
      FAIL_REGULAR_EXPRESSION "SKIPPED" ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${part};OMP_WAIT_POLICY=PASSIVE;CUDA_VISIBLE_DEVICES=")
  endforeach()
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 300 TEST_PREFIX "${prefix}." TEST_FILTER "Long*"
    TEST_LIST ${target}_LONG_TESTS PROPERTIES ${ARGN} LABELS all)
endfunction()

# esp_module(name [TORCH] [TESTING] DEPENDS module…)
#
# The library espalier_<name> from espalier/<name>/**/*.cc (less main.cc), and its test program
# espalier_<name>_test from the *_test.cc beside them. A module without a source is an empty library. TORCH
# modules see libtorch; whoever links them does not. TESTING modules
# live in testing/ and are linked by tests and benchmarks only.
function(esp_module name)
  cmake_parse_arguments(ARG "TORCH;TESTING" "" "DEPENDS" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/espalier/${name})
  if(ARG_TESTING)
    if(NOT ESPALIER_TESTS AND NOT ESPALIER_BENCH)
      return()
    endif()
    set(folder ${PROJECT_SOURCE_DIR}/testing)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cc$")
  if(ESPALIER_SANITIZE_THREADS)  # of the tests, what runs there: tests/CMakeLists.txt names the suites
    set(every ${tests})
    set(tests)
    foreach(test ${every})
      file(STRINGS ${test} mark REGEX "^// Preset tsan compiles this file")
      if(mark)
        list(APPEND tests ${test})
      endif()
    endforeach()
  endif()
  set(library espalier_${name})
  if(sources)
    add_library(${library} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(${library} PRIVATE ${ESPALIER_WARNINGS})
    if(NOT ARG_TESTING AND NOT name MATCHES "cli$")
      set_property(GLOBAL APPEND PROPERTY ESPALIER_LIBRARY_MODULES ${library})
    endif()
  else()
    add_library(${library} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${library} ${scope} ${PROJECT_SOURCE_DIR})
  target_link_libraries(${library} ${scope} Threads::Threads)
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(${library} ${scope} espalier_${dependency})
  endforeach()
  if(sources AND ARG_TORCH)
    esp_use_torch(${library})
  elseif(sources)
    target_link_libraries(${library} PRIVATE nlohmann_json::nlohmann_json fmt::fmt)
  endif()

  if(tests AND ESPALIER_TESTS)
    add_executable(${library}_test ${tests})
    target_compile_options(${library}_test PRIVATE ${ESPALIER_WARNINGS})
    target_link_libraries(${library}_test PRIVATE ${library} GTest::gmock_main)
    if(TARGET espalier_testing OR NOT name STREQUAL "base")
      target_link_libraries(${library}_test PRIVATE espalier_testing)
    endif()
    if(ARG_TORCH)  # whose precompiled header fixes the options
      esp_use_torch(${library}_test)
    else()
      target_compile_options(${library}_test PRIVATE ${ESPALIER_TEST_OPTIONS})
      target_link_libraries(${library}_test PRIVATE nlohmann_json::nlohmann_json fmt::fmt)
    endif()
    target_compile_definitions(${library}_test PRIVATE ESPALIER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    esp_discover_tests(${library}_test ${name} TIMEOUT 300)
  endif()
endfunction()
