# The install tree: headers, library, CMake package, pkg-config file, the program (apps/megamla).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/megamla)

install(TARGETS megamla EXPORT megamlaTargets)
install(DIRECTORY include/megamla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_package_config_file(cmake/package/megamlaConfig.cmake.in megamlaConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(megamlaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT megamlaTargets NAMESPACE megamla:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/megamlaConfig.cmake ${PROJECT_BINARY_DIR}/megamlaConfigVersion.cmake
              cmake/dependencies.cmake DESTINATION ${package_dir})

# Paths relative to the .pc file itself, so that an install tree can be moved.
cmake_path(SET pc_dir "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${pc_dir}" OUTPUT_VARIABLE pc_to_prefix)
set(pc_private_libs "-ldnnl -lhwy -lfmt -fopenmp -lstdc++")
configure_file(cmake/package/megamla.pc.in megamla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/megamla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
