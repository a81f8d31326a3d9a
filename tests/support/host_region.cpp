#include "support/host_region.hpp"

#include <map>

namespace megamla::test {
namespace {

std::map<char*, size_t>& regions() {
  static std::map<char*, size_t> all;
  return all;
}

}  // namespace

HostRegion::HostRegion(void* begin, size_t bytes) : begin_(begin) { regions()[static_cast<char*>(begin)] = bytes; }
HostRegion::~HostRegion() { regions().erase(static_cast<char*>(begin_)); }

Span HostRegion::around(const void* p) {
  char* address = static_cast<char*>(const_cast<void*>(p));
  auto next = regions().upper_bound(address);
  if (next == regions().begin()) return {};
  --next;
  if (address > next->first + next->second) return {};
  return {next->first, next->second};
}

}  // namespace megamla::test
