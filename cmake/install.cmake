install(TARGETS megamla EXPORT megamlaTargets)
install(DIRECTORY include/megamla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
