#include "io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json_file.hpp"

namespace megamla::io {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct DtypeName {
  const char* name;
  int64_t size;
  int dtype;  // megamla_dtype or -1
};
constexpr DtypeName kDtypes[] = {{"U8", 1, MEGAMLA_U8},
                                 {"I32", 4, MEGAMLA_I32},
                                 {"I64", 8, MEGAMLA_I64},
                                 {"F32", 4, MEGAMLA_F32},
                                 {"F64", 8, MEGAMLA_F64},
                                 {"BF16", 2, MEGAMLA_BF16},
                                 {"F8_E4M3", 1, MEGAMLA_F8_E4M3},
                                 {"F8_E8M0", 1, MEGAMLA_F8_E8M0},
                                 {"BOOL", 1, -1},
                                 {"I8", 1, -1},
                                 {"I16", 2, -1},
                                 {"U16", 2, -1},
                                 {"U32", 4, -1},
                                 {"U64", 8, -1},
                                 {"F16", 2, -1},
                                 {"F8_E5M2", 1, -1}};

const DtypeName* find_dtype(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return name == d.name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

struct Extent {
  int64_t begin;
  int64_t end;
  std::string name;
};

Status read_offsets(const std::string& where, const json& entry, int64_t data_bytes, Extent* extent) {
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return io_error("{}: data_offsets: expected two non-negative integers, found {}", where,
                    offsets == entry.end() ? "nothing" : describe(*offsets));
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > static_cast<uint64_t>(data_bytes)) {
    return io_error("{}: data_offsets: expected a range within {} data bytes, found [{}, {}]", where, data_bytes, begin,
                    end);
  }
  extent->begin = static_cast<int64_t>(begin);
  extent->end = static_cast<int64_t>(end);
  return {};
}

Status read_shape(const std::string& where, const json& entry, std::vector<int64_t>* shape, int64_t* elements) {
  const auto dims = entry.find("shape");
  if (dims == entry.end() || !dims->is_array() || dims->size() > 16) {
    return io_error("{}: shape: expected a list of at most 16 integers, found {}", where,
                    dims == entry.end() ? "nothing" : describe(*dims));
  }
  *elements = 1;
  int64_t product = 1;
  for (const json& dim : *dims) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return io_error("{}: shape: expected non-negative integers, found {}", where, describe(*dims));
    }
    const auto extent = dim.get<int64_t>();
    // Without the zeros, so that strides stay in range, too.
    if (extent != 0 && product > std::numeric_limits<int64_t>::max() / 8 / extent) {
      return io_error("{}: shape: expected a product below 2^60, found {}", where, describe(*dims));
    }
    if (extent != 0) product *= extent;
    *elements *= extent;
    shape->push_back(extent);
  }
  return {};
}

// Everything that the header says of one tensor. A dtype that this reader does not know may still be listed: only the
// tensor that has it cannot be used.
Status read_entry(const std::string& where, const json& entry, int64_t data_bytes, StoredTensor* tensor,
                  Extent* extent) {
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    return io_error("{}: dtype: expected a string, found {}", where,
                    dtype == entry.end() ? "nothing" : describe(*dtype));
  }
  tensor->dtype = dtype->get<std::string>();
  int64_t elements = 0;
  MEGAMLA_RETURN_IF_ERROR(read_shape(where, entry, &tensor->shape, &elements));
  MEGAMLA_RETURN_IF_ERROR(read_offsets(where, entry, data_bytes, extent));
  const int64_t size = stored_dtype_size(tensor->dtype);
  if (size != 0 && extent->end - extent->begin != elements * size) {
    return io_error("{}: data_offsets: expected {} bytes for {} [{}], found {}", where, elements * size, tensor->dtype,
                    fmt::join(tensor->shape, ", "), extent->end - extent->begin);
  }
  return {};
}

Status check_overlap(const std::string& path, std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const Extent* before = nullptr;
  for (const Extent& extent : extents) {
    if (extent.begin == extent.end) continue;
    if (before != nullptr && extent.begin < before->end) {
      return io_error("{}: {}: expected bytes of its own, found an overlap with {}", path, brief(extent.name),
                      brief(before->name));
    }
    before = &extent;
  }
  return {};
}

}  // namespace

int64_t stored_dtype_size(const std::string& dtype) {
  const DtypeName* found = find_dtype(dtype);
  return found == nullptr ? 0 : found->size;
}

int stored_dtype(const std::string& dtype) {
  const DtypeName* found = find_dtype(dtype);
  return found == nullptr ? -1 : found->dtype;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  SafetensorsFile opened(path, std::move(file.value()));
  if (Status status = opened.parse(); !status.ok()) return status;
  return opened;
}

Status SafetensorsFile::parse() {
  const std::span<const uint8_t> bytes = file_.bytes();
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size))
    return io_error("{}: header: expected at least 8 bytes, found {}", path_, bytes.size());
  std::memcpy(&header_size, bytes.data(),
              sizeof(header_size));  // little endian, as every machine this library builds for
  if (header_size > kMaxHeader || header_size > bytes.size() - sizeof(header_size)) {
    return io_error("{}: header length: expected at most {}, found {}", path_,
                    std::min<uint64_t>(kMaxHeader, bytes.size() - sizeof(header_size)), header_size);
  }
  const uint8_t* data = bytes.data() + sizeof(header_size) + header_size;
  const auto data_bytes = static_cast<int64_t>(bytes.size() - sizeof(header_size) - header_size);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size);
  const Result<json> header = parse_json_object(path_ + ": header", {text, header_size});
  if (!header.ok()) return header.status();

  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.value().items()) {
    const std::string where = fmt::format("{}: {}", path_, brief(name));
    if (!entry.is_object()) return io_error("{}: expected an object, found {}", where, describe(entry));
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string())
          return io_error("{}: {}: expected a string, found {}", where, brief(key), describe(value));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    StoredTensor tensor;
    Extent extent{0, 0, name};
    MEGAMLA_RETURN_IF_ERROR(read_entry(where, entry, data_bytes, &tensor, &extent));
    tensor.data = data + extent.begin;
    tensor.bytes = extent.end - extent.begin;
    extents.push_back(extent);
    tensors_[name] = std::move(tensor);
  }
  return check_overlap(path_, std::move(extents));
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<megamla_tensor> SafetensorsFile::view(const std::string& name) const {
  const StoredTensor* stored = find(name);
  if (stored == nullptr) return io_error("{}: {}: expected a tensor, found nothing", path_, name);
  const int dtype = stored_dtype(stored->dtype);
  if (dtype < 0)
    return io_error("{}: {}: dtype: expected one that this library reads, found '{}'", path_, name,
                    brief(stored->dtype));
  if (stored->shape.size() > MEGAMLA_MAX_DIMS) {
    return io_error("{}: {}: shape: expected at most {} dimensions, found {}", path_, name, MEGAMLA_MAX_DIMS,
                    stored->shape.size());
  }
  megamla_tensor t{};
  t.data = const_cast<uint8_t*>(stored->data);
  t.dtype = dtype;
  t.cuda_device = -1;
  t.ndim = stored->shape.empty() ? 1 : static_cast<int32_t>(stored->shape.size());
  t.shape[0] = 1;
  std::copy(stored->shape.begin(), stored->shape.end(), t.shape);
  int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    t.stride[d] = stride;
    stride *= t.shape[d];
  }
  return t;
}

}  // namespace megamla::io
