// The output pair (contract section 7): one block of memory, data first, then the packed scales.
#include <cstring>

#include "core/c_boundary.hpp"
#include "core/tensor.hpp"
#include "core/validate.hpp"
#include "format/chunked.hpp"
#include "layer/workspace.hpp"
#include "megamla/layer.h"

namespace megamla::layer {
namespace {

int64_t data_bytes(int64_t tokens, int64_t groups) {
  return format::round_up(tokens * groups * format::kGroupWidth, kWorkspaceAlignment);
}

Status check_extent(int64_t tokens, int64_t groups) {
  Validator v("output_pair", -1);
  v.range("tokens", tokens, 0, int64_t{1} << 31).range("groups", groups, 1, 16);
  return v.status();
}

}  // namespace
}  // namespace megamla::layer

using namespace megamla;  // NOLINT(google-build-using-namespace): the C entry points below

extern "C" int64_t megamla_output_pair_bytes(int64_t tokens, int64_t groups) {
  if (!layer::check_extent(tokens, groups).ok()) return -1;
  return layer::data_bytes(tokens, groups) + groups * format::kGroupScaleWords * format::round_up(tokens, 4) * 4;
}

extern "C" megamla_status megamla_output_pair_views(void* memory, int64_t tokens, int64_t groups, int32_t cuda_device,
                                                    megamla_tensor* data, megamla_tensor* scale) {
  return guard([&]() -> Status {
    if (data == nullptr || scale == nullptr)
      return invalid_argument("output_pair: data, scale: expected pointers, got NULL");
    MEGAMLA_RETURN_IF_ERROR(layer::check_extent(tokens, groups));
    Validator v("output_pair", -1);
    v.require(memory != nullptr || tokens == 0, "memory", "a non-null pointer", "NULL").aligned("memory", memory, 16);
    v.addressable("memory", memory, megamla_output_pair_bytes(tokens, groups));
    MEGAMLA_RETURN_IF_ERROR(v.status());
    char* begin = static_cast<char*>(memory);
    *data = host_tensor(begin, MEGAMLA_F8_E4M3, {tokens, groups, format::kGroupWidth});
    *scale = host_tensor(tokens == 0 ? begin : begin + layer::data_bytes(tokens, groups), MEGAMLA_I32,
                         {tokens, groups, format::kGroupScaleWords});
    const int64_t a = format::round_up(tokens, 4);
    scale->stride[0] = 1;
    scale->stride[1] = format::kGroupScaleWords * a;
    scale->stride[2] = a;
    data->cuda_device = scale->cuda_device = cuda_device;
    return {};
  });
}

extern "C" megamla_status megamla_output_pair_slice(const megamla_tensor* data, const megamla_tensor* scale,
                                                    int64_t begin, int64_t end, megamla_tensor* data_slice,
                                                    megamla_tensor* scale_slice) {
  return guard([&]() -> Status {
    if (data == nullptr || scale == nullptr || data_slice == nullptr || scale_slice == nullptr) {
      return invalid_argument("output_pair: data, scale and their slices: expected pointers, got NULL");
    }
    Validator v("output_pair", -1);
    v.require(data->ndim == 3 && scale->ndim == 3 && data->shape[0] == scale->shape[0], "data, scale",
              "two views of three dimensions over the same tokens", describe(*data) + " and " + describe(*scale));
    if (!v.ok()) return v.status();
    Validator pair("output_pair", data->cuda_device);
    pair.output_pair("data", *data, "scale", *scale, data->shape[0], data->shape[1], Validator::Access::kRead);
    pair.range("begin", begin, 0, data->shape[0]).range("end", end, begin, data->shape[0]);
    MEGAMLA_RETURN_IF_ERROR(pair.status());
    *data_slice = slice(*data, begin, end);
    *scale_slice = slice(*scale, begin, end);
    return {};
  });
}
