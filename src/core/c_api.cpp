// Entry points of include/megamla/types.h.
#include <string>

#include "core/c_boundary.hpp"

namespace megamla {
namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

megamla_status report(const Status& status) noexcept {
  if (status.ok()) return MEGAMLA_OK;
  try {
    last_error() = status.message();
  } catch (...) {
    last_error().clear();  // no memory for the message: the code has to do
  }
  return status.code();
}

}  // namespace megamla

#define MEGAMLA_STRING_(x) #x
#define MEGAMLA_STRING(x) MEGAMLA_STRING_(x)

extern "C" {

const char* megamla_last_error(void) { return megamla::last_error().c_str(); }

const char* megamla_status_name(megamla_status status) {
  switch (status) {
    case MEGAMLA_OK:
      return "ok";
    case MEGAMLA_INVALID_ARGUMENT:
      return "invalid argument";
    case MEGAMLA_UNSUPPORTED:
      return "unsupported";
    case MEGAMLA_WORKSPACE_TOO_SMALL:
      return "workspace too small";
    case MEGAMLA_IO_ERROR:
      return "input/output error";
    case MEGAMLA_RUNTIME_ERROR:
      return "runtime error";
    case MEGAMLA_STATUS_FORCE_INT:
      break;
  }
  return "?";
}

const char* megamla_version(void) {
  return MEGAMLA_STRING(MEGAMLA_VERSION_MAJOR) "." MEGAMLA_STRING(MEGAMLA_VERSION_MINOR) "." MEGAMLA_STRING(
      MEGAMLA_VERSION_PATCH);
}

int64_t megamla_dtype_size(megamla_dtype dtype) {
  switch (dtype) {
    case MEGAMLA_U8:
    case MEGAMLA_F8_E4M3:
    case MEGAMLA_F8_E8M0:
      return 1;
    case MEGAMLA_BF16:
      return 2;
    case MEGAMLA_I32:
    case MEGAMLA_F32:
      return 4;
    case MEGAMLA_I64:
    case MEGAMLA_F64:
      return 8;
    case MEGAMLA_DTYPE_FORCE_INT:
      break;
  }
  return 0;
}

const char* megamla_dtype_name(megamla_dtype dtype) {
  switch (dtype) {
    case MEGAMLA_U8:
      return "U8";
    case MEGAMLA_I32:
      return "I32";
    case MEGAMLA_I64:
      return "I64";
    case MEGAMLA_F32:
      return "F32";
    case MEGAMLA_F64:
      return "F64";
    case MEGAMLA_BF16:
      return "BF16";
    case MEGAMLA_F8_E4M3:
      return "F8_E4M3";
    case MEGAMLA_F8_E8M0:
      return "F8_E8M0";
    case MEGAMLA_DTYPE_FORCE_INT:
      break;
  }
  return "?";
}

}  // extern "C"
