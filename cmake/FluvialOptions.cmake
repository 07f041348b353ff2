# Compiler flags, CUDA detection, sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>)
if(FLUVIAL_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: "literal" + std::string warns of an overlap that cannot be.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
# fp contraction differs between compilers and targets; results must not. SIMD code asks for FMA by name.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(FLUVIAL_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FLUVIAL_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${FLUVIAL_SANITIZE})
  # These lanes look for mistakes of memory and threads; line tables and one narrow, one wide and the widest
  # instruction set are enough for that, and halve what there is to compile.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  add_compile_definitions("$<$<COMPILE_LANGUAGE:CXX>:HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)>")
endif()

find_program(FLUVIAL_CCACHE ccache)
if(FLUVIAL_CCACHE)
  # Paths below the source folder count as relative, so that another clone finds what this one compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${FLUVIAL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

find_package(Threads REQUIRED)

set(FLUVIAL_HAVE_CUDA OFF)
if(NOT FLUVIAL_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${FLUVIAL_CUDA_ARCHITECTURES})
  endif()
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # CMake 3.25 does not know nvcc's flag for C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(FLUVIAL_HAVE_CUDA ON)
  elseif(FLUVIAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FLUVIAL_CUDA=ON, but no nvcc was found: install the CUDA toolkit or set CMAKE_CUDA_COMPILER")
  endif()
endif()
message(STATUS "Fluvial: CUDA backends ${FLUVIAL_HAVE_CUDA}")
