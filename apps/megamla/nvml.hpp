// NVML, the driver's own library, opened at run time: without it the clocks are unknown and nothing else changes.
#pragma once

#include <string>

namespace megamla::app::nvml {

// "580.65.06"; "unknown" without NVML.
std::string driver_version();
// Of the GPU with this PCI bus id ("0000:1B:00.0"); 0 without NVML.
int sm_clock_mhz(const std::string& pci_bus_id);

}  // namespace megamla::app::nvml
