# What the library itself links. Every dependency is a package of the distribution: docs/building.md says what each is
# for. Installed beside the package file, too: a static library's consumer needs the same.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(hwy 1.0.3 REQUIRED)

# oneDNN: Debian 12 has 2.6, Ubuntu 24.04 has 3.x. Not through its CMake package: Debian's asks for OpenCL's headers,
# which its own development package does not bring.
if(NOT TARGET oneDNN::dnnl)
  if(MEGAMLA_BUILD_PYTHON)
    include(${CMAKE_CURRENT_LIST_DIR}/wheel_onednn.cmake)
  endif()
  find_path(MEGAMLA_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
  find_library(MEGAMLA_DNNL_LIBRARY dnnl REQUIRED)
  add_library(oneDNN::dnnl UNKNOWN IMPORTED)
  set_target_properties(oneDNN::dnnl PROPERTIES IMPORTED_LOCATION "${MEGAMLA_DNNL_LIBRARY}"
                                                INTERFACE_INCLUDE_DIRECTORIES "${MEGAMLA_DNNL_INCLUDE}")
endif()
