# Build rules of the project: warnings, float contract, include direction, CUDA discovery.

set(STRATA_WARNINGS -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 misreads std::string's inlined copies (its bugs 105651 and 105329), at other places with each -O level.
  list(APPEND STRATA_WARNINGS -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()
# One order, one answer: the compiler may not fuse a multiplication and an addition.
set(STRATA_FLOAT_CONTRACT -ffp-contract=off)

# strata_options(<target>): what every host target is compiled with.
function(strata_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${STRATA_WARNINGS}> $<$<COMPILE_LANGUAGE:CXX>:${STRATA_FLOAT_CONTRACT}>)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

# strata_optimize(<target> <level>): another level than -O3 in Release, where the time goes into kernels instead.
function(strata_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

# The headers that take longest to read, read once per target. A source still includes what it uses.
set(STRATA_PRECOMPILED <nlohmann/json.hpp> <fmt/format.h> <algorithm> <filesystem> <fstream> <functional> <map> <memory>
  <optional> <string> <vector>)
function(strata_precompile target)
  target_precompile_headers(${target} PRIVATE ${STRATA_PRECOMPILED} ${ARGN})
endfunction()

# strata_library(<name> SOURCES <files> DEPENDS <strata libraries> LINK <other libraries>)
# The folder <name> may include headers only from itself and from the folders it depends on, transitively.
function(strata_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_library(strata_${name} STATIC ${arg_SOURCES})
  strata_options(strata_${name})
  set(allowed ${name})
  foreach(dependency ${arg_DEPENDS})
    target_link_libraries(strata_${name} PUBLIC strata_${dependency})
    get_target_property(inherited strata_${dependency} STRATA_ALLOWED_FOLDERS)
    list(APPEND allowed ${inherited})
  endforeach()
  list(REMOVE_DUPLICATES allowed)
  set_target_properties(strata_${name} PROPERTIES STRATA_ALLOWED_FOLDERS "${allowed}")
  target_link_libraries(strata_${name} PUBLIC ${arg_LINK})
  strata_check_includes(strata_${name} ${name} "${allowed}")
endfunction()

# Refuses, at build time, an #include "folder/..." that points up the layering.
function(strata_check_includes target folder allowed)
  string(REPLACE ";" "," allowed_list "${allowed}")
  add_custom_target(${target}_includes
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DFOLDER=${folder} -DALLOWED=${allowed_list}
            -P ${CMAKE_SOURCE_DIR}/cmake/CheckIncludes.cmake
    VERBATIM)
  add_dependencies(${target} ${target}_includes)
endfunction()

# Sets STRATA_HAVE_CUDA in the caller and enables the language when CUDA is wanted and present.
macro(strata_find_cuda)
  set(STRATA_HAVE_CUDA OFF)
  if(NOT STRATA_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(STRATA_CUDA_ARCHS "75;80;86;89;90a;100;120" CACHE STRING "CUDA real architectures to build for")
      set(CMAKE_CUDA_ARCHITECTURES "")
      foreach(arch ${STRATA_CUDA_ARCHS})
        list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch}-real)
      endforeach()
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      enable_language(CUDA)
      # CMake 3.25 does not know the dialect of nvcc 12 and later.
      if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      find_package(CUDAToolkit REQUIRED)
      set(STRATA_HAVE_CUDA ON)
    elseif(STRATA_CUDA STREQUAL "ON")
      message(FATAL_ERROR "STRATA_CUDA=ON, but no CUDA compiler was found; put nvcc on PATH or set CMAKE_CUDA_COMPILER")
    endif()
  endif()
  message(STATUS "CUDA kernels: ${STRATA_HAVE_CUDA}")
endmacro()
