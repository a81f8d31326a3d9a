#include "nvml.hpp"

#include <dlfcn.h>

namespace megamla::app::nvml {
namespace {

// The few declarations of nvml.h that are used here; 0 is NVML_SUCCESS.
using Device = struct nvmlDevice_st*;
constexpr unsigned kClockSm = 1;
constexpr unsigned kVersionBytes = 80;

class Library {
 public:
  Library() {
    if (handle_ == nullptr) return;
    int (*init)() = nullptr;
    find("nvmlInit_v2", init);
    find("nvmlSystemGetDriverVersion", driver_version);
    find("nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id);
    find("nvmlDeviceGetClockInfo", clock_info);
    ready_ = init != nullptr && driver_version != nullptr && handle_by_bus_id != nullptr && clock_info != nullptr &&
             init() == 0;
  }
  bool ready() const { return ready_; }

  int (*driver_version)(char* text, unsigned bytes) = nullptr;
  int (*handle_by_bus_id)(const char* bus_id, Device* device) = nullptr;
  int (*clock_info)(Device device, unsigned type, unsigned* mhz) = nullptr;

 private:
  template <class Function>
  void find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  void* handle_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);  // stays open as long as the process
  bool ready_ = false;
};

const Library& library() {
  static const Library opened;
  return opened;
}

}  // namespace

std::string driver_version() {
  char text[kVersionBytes] = {};
  return library().ready() && library().driver_version(text, sizeof(text)) == 0 ? text : "unknown";
}

int sm_clock_mhz(const std::string& pci_bus_id) {
  Device device = nullptr;
  unsigned mhz = 0;
  if (!library().ready() || library().handle_by_bus_id(pci_bus_id.c_str(), &device) != 0) return 0;
  return library().clock_info(device, kClockSm, &mhz) == 0 ? static_cast<int>(mhz) : 0;
}

}  // namespace megamla::app::nvml
