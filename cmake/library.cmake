# The library: one set of objects, compiled once, for the shared library and for what needs the internals (tests, the program).
file(GLOB MEGAMLA_SOURCES CONFIGURE_DEPENDS src/core/*.cpp src/plan/*.cpp src/ops/*.cpp src/reference/*.cpp src/cpu/*.cpp
     src/cpu/*/*.cpp src/layer/*.cpp)
# Readers and writers of files serve the program and the tests; the library itself opens no file.
file(GLOB MEGAMLA_IO_SOURCES CONFIGURE_DEPENDS src/io/*.cpp)

add_library(megamla_objects OBJECT ${MEGAMLA_SOURCES})
target_include_directories(megamla_objects PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
set_target_properties(megamla_objects PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(megamla_objects PUBLIC megamla_options fmt::fmt OpenMP::OpenMP_CXX Threads::Threads DNNL::dnnl
                                             PkgConfig::HWY)

add_library(megamla)
target_sources(megamla PRIVATE $<TARGET_OBJECTS:megamla_objects>)
add_library(megamla::megamla ALIAS megamla)
set_target_properties(megamla PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE CXX)
target_include_directories(megamla INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(megamla PRIVATE $<BUILD_INTERFACE:megamla_objects>)

add_library(megamla_io OBJECT ${MEGAMLA_IO_SOURCES})
target_link_libraries(megamla_io PUBLIC megamla_objects nlohmann_json::nlohmann_json)
