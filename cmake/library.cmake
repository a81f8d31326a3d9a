# The library: one set of objects, compiled once, for the library itself and for what needs the internals (tests, the
# program). CUDA runtime, oneDNN and fmt stay inside: none of their headers is in include/megamla.
set(library_folders core format plan ops reference cpu layer)
list(TRANSFORM library_folders PREPEND "${PROJECT_SOURCE_DIR}/src/" OUTPUT_VARIABLE library_globs)
list(TRANSFORM library_globs APPEND "/*.cpp")
file(GLOB_RECURSE MEGAMLA_SOURCES CONFIGURE_DEPENDS ${library_globs})
# Readers and writers of files serve the program and the tests; the library itself opens no file.
file(GLOB_RECURSE MEGAMLA_IO_SOURCES CONFIGURE_DEPENDS src/io/*.cpp)

add_library(megamla_objects OBJECT ${MEGAMLA_SOURCES} ${MEGAMLA_CUDA_SOURCES})
target_include_directories(megamla_objects PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# GCC 12's own AVX-512 headers initialise undefined vectors with themselves and warn about it once inlined.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(avx512_sources ${MEGAMLA_SOURCES})
  list(FILTER avx512_sources INCLUDE REGEX "_avx512[^/]*\\.cpp$")
  set_source_files_properties(${avx512_sources} PROPERTIES COMPILE_OPTIONS
                                                           "-Wno-uninitialized;-Wno-maybe-uninitialized")
endif()
# Rounded results are part of the contract of the small ops; attention's arithmetic is free (src/cuda/*/).
file(GLOB small_op_kernels src/cuda/*.cu)
set_source_files_properties(${small_op_kernels} PROPERTIES COMPILE_OPTIONS "--fmad=false")
set_target_properties(megamla_objects PROPERTIES C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
                                                 CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
set(MEGAMLA_PRIVATE_LIBRARIES fmt::fmt hwy::hwy OpenMP::OpenMP_CXX Threads::Threads
                              oneDNN::dnnl)
if(MEGAMLA_HAVE_CUDA)
  list(APPEND MEGAMLA_PRIVATE_LIBRARIES ${MEGAMLA_CUDA_RUNTIME})
  target_compile_definitions(megamla_objects PUBLIC MEGAMLA_HAVE_CUDA=1)
endif()
target_link_libraries(megamla_objects PUBLIC megamla_options ${MEGAMLA_PRIVATE_LIBRARIES})

add_library(megamla $<TARGET_OBJECTS:megamla_objects>)
add_library(megamla::megamla ALIAS megamla)
set_target_properties(megamla PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                         LINKER_LANGUAGE CXX)
target_include_directories(megamla INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(megamla PRIVATE $<BUILD_INTERFACE:megamla_options> ${MEGAMLA_PRIVATE_LIBRARIES})
# Hidden visibility does not reach the standard library's templates; the list of exports does.
target_link_options(megamla PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
if(NOT MEGAMLA_SANITIZE)  # a sanitizer's runtime is in the executable
  target_link_options(megamla PRIVATE -Wl,--no-undefined)
endif()
set_property(TARGET megamla PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)

# An archive, so that a test links only what it uses.
add_library(megamla_internal STATIC $<TARGET_OBJECTS:megamla_objects>)
set_target_properties(megamla_internal PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(megamla_internal PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(megamla_internal
                           PUBLIC $<TARGET_PROPERTY:megamla_objects,INTERFACE_COMPILE_DEFINITIONS>)
target_link_libraries(megamla_internal PUBLIC megamla_options ${MEGAMLA_PRIVATE_LIBRARIES})

if(MEGAMLA_BUILD_APPS OR MEGAMLA_BUILD_TESTS)
  find_package(nlohmann_json REQUIRED)
  if(MEGAMLA_IO_SOURCES)
    add_library(megamla_io STATIC ${MEGAMLA_IO_SOURCES})
    target_link_libraries(megamla_io PUBLIC megamla_internal nlohmann_json::nlohmann_json)
  else()
    add_library(megamla_io INTERFACE)
    target_link_libraries(megamla_io INTERFACE megamla_internal nlohmann_json::nlohmann_json)
  endif()
endif()
