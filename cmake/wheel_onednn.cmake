# The oneDNN of the Python wheel: a CPU-only build of Intel's, from the package index, where pyproject.toml asks for it.
# The distribution's may be linked against OpenCL, which a wheel must not bring into a process. Sets
# MEGAMLA_DNNL_INCLUDE and MEGAMLA_DNNL_LIBRARY; leaves them alone where the package is not there.
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "
import importlib.metadata
for name in ('onednn-devel-cpu-gomp', 'onednn-cpu-gomp'):
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    for file in package.files:
        if file.match('oneapi/dnnl/dnnl.hpp') or file.match('libdnnl.so.[0-9]'):
            print(package.locate_file(file).resolve())
"
  OUTPUT_VARIABLE files OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" files "${files}")
list(LENGTH files count)
if(count EQUAL 2)
  # At a place that stays where it is when pip builds in another environment next time.
  list(GET files 0 header)
  list(GET files 1 library)
  cmake_path(GET header PARENT_PATH headers)
  cmake_path(GET library FILENAME soname)
  file(COPY "${headers}" DESTINATION "${PROJECT_BINARY_DIR}/onednn/include/oneapi")
  file(COPY "${library}" DESTINATION "${PROJECT_BINARY_DIR}/onednn/lib")
  set(MEGAMLA_DNNL_INCLUDE "${PROJECT_BINARY_DIR}/onednn/include")
  set(MEGAMLA_DNNL_LIBRARY "${PROJECT_BINARY_DIR}/onednn/lib/${soname}")
  message(STATUS "oneDNN of the wheel: ${library}")
endif()
