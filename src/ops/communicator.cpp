#include "ops/communicator.hpp"

#include <cstring>
#include <memory>

#include "core/c_boundary.hpp"
#include "core/read_struct.hpp"
#include "core/validate.hpp"

static_assert(MEGAMLA_COMMUNICATOR_ID_BYTES == megamla::cuda::nccl::kIdBytes);

namespace megamla::ops {
namespace {

#if !MEGAMLA_HAVE_CUDA
Status no_kernels() {
  return unsupported("communicator: expected a build with GPU kernels, got one without (MEGAMLA_CUDA=OFF, or no nvcc)");
}
#endif

constexpr int64_t kMaxRanks = 1 << 20;

Status supported() {
#if MEGAMLA_HAVE_CUDA
  return cuda::nccl::available();
#else
  return no_kernels();
#endif
}

Status make_id(void* id) {
  if (id == nullptr) return invalid_argument("communicator: id: expected {} bytes, got NULL", cuda::nccl::kIdBytes);
#if MEGAMLA_HAVE_CUDA
  cuda::nccl::Id made{};
  MEGAMLA_RETURN_IF_ERROR(cuda::nccl::make_id(&made));
  std::memcpy(id, made.bytes, sizeof(made.bytes));
  return {};
#else
  return no_kernels();
#endif
}

Status create(const void* id, int64_t size, int64_t rank, int32_t cuda_device, megamla_communicator** result) {
  if (id == nullptr || result == nullptr)
    return invalid_argument("communicator: id, communicator: expected pointers, got NULL");
  Validator v("communicator", -1);
  v.range("size", size, 1, kMaxRanks).range("rank", rank, 0, size - 1).range("cuda_device", cuda_device, 0, INT32_MAX);
  MEGAMLA_RETURN_IF_ERROR(v.status());
#if MEGAMLA_HAVE_CUDA
  auto made = std::make_unique<megamla_communicator>();
  made->size = size;
  made->rank = rank;
  made->cuda_device = cuda_device;
  cuda::nccl::Id group{};
  std::memcpy(group.bytes, id, sizeof(group.bytes));
  MEGAMLA_RETURN_IF_ERROR(made->nccl.join(group, static_cast<int>(size), static_cast<int>(rank), cuda_device));
  *result = made.release();
  return {};
#else
  return no_kernels();
#endif
}

#if MEGAMLA_HAVE_CUDA
int64_t elements(const megamla_tensor& t) { return t.shape[0] * t.shape[1]; }
cuda::nccl::Type type_of(const megamla_tensor& t) {
  return t.dtype == MEGAMLA_F32 ? cuda::nccl::Type::kF32 : cuda::nccl::Type::kBf16;
}
#endif

}  // namespace

Status all_reduce(const megamla_communicator& c, const megamla_tensor& x, [[maybe_unused]] const megamla_exec& exec) {
  Validator v("all_reduce", c.cuda_device);
  v.tensor("x", x, {MEGAMLA_BF16, MEGAMLA_F32}, {Validator::kAny, Validator::kAny}, 0, Validator::Access::kWrite);
  MEGAMLA_RETURN_IF_ERROR(v.status());
#if MEGAMLA_HAVE_CUDA
  return elements(x) == 0 ? Status() : c.nccl.all_reduce(x.data, elements(x), type_of(x), exec.stream);
#else
  return no_kernels();
#endif
}

Status reduce_scatter(const megamla_communicator& c, const megamla_tensor& x, const megamla_tensor& y,
                      [[maybe_unused]] const megamla_exec& exec) {
  Validator v("reduce_scatter", c.cuda_device);
  v.tensor("x", x, {MEGAMLA_BF16, MEGAMLA_F32}, {Validator::kAny, Validator::kAny}, 0);
  if (v.ok()) {
    v.multiple_of("x rows", x.shape[0], c.size);
    v.tensor("y", y, {static_cast<megamla_dtype>(x.dtype)}, {x.shape[0] / c.size, x.shape[1]}, 0,
             Validator::Access::kWrite);
  }
  v.no_overlap("y", y, "x", x);
  MEGAMLA_RETURN_IF_ERROR(v.status());
#if MEGAMLA_HAVE_CUDA
  return elements(y) == 0 ? Status() : c.nccl.reduce_scatter(x.data, y.data, elements(y), type_of(x), exec.stream);
#else
  return no_kernels();
#endif
}

}  // namespace megamla::ops

using namespace megamla;  // NOLINT(google-build-using-namespace): the C entry points below

namespace {

Status read_exec(const char* op, const megamla_exec* exec, megamla_exec* read) {
  *read = MEGAMLA_EXEC_INIT;
  return exec == nullptr ? Status() : read_struct(op, "exec", exec, read);
}

}  // namespace

extern "C" {

megamla_status megamla_communicator_supported(void) {
  return guard([] { return ops::supported(); });
}
megamla_status megamla_communicator_make_id(void* id) {
  return guard([&] { return ops::make_id(id); });
}
megamla_status megamla_communicator_create(const void* id, int64_t size, int64_t rank, int32_t cuda_device,
                                           megamla_communicator** communicator) {
  return guard([&] { return ops::create(id, size, rank, cuda_device, communicator); });
}
void megamla_communicator_destroy(megamla_communicator* communicator) {
  std::unique_ptr<megamla_communicator>{communicator}.reset();
}
megamla_status megamla_all_reduce(megamla_communicator* communicator, const megamla_tensor* x,
                                  const megamla_exec* exec) {
  return guard([&]() -> Status {
    if (communicator == nullptr || x == nullptr)
      return invalid_argument("all_reduce: communicator, x: expected pointers, got NULL");
    megamla_exec e;
    MEGAMLA_RETURN_IF_ERROR(read_exec("all_reduce", exec, &e));
    return ops::all_reduce(*communicator, *x, e);
  });
}
megamla_status megamla_reduce_scatter(megamla_communicator* communicator, const megamla_tensor* x,
                                      const megamla_tensor* y, const megamla_exec* exec) {
  return guard([&]() -> Status {
    if (communicator == nullptr || x == nullptr || y == nullptr)
      return invalid_argument("reduce_scatter: communicator, x, y: expected pointers, got NULL");
    megamla_exec e;
    MEGAMLA_RETURN_IF_ERROR(read_exec("reduce_scatter", exec, &e));
    return ops::reduce_scatter(*communicator, *x, *y, e);
  });
}

}  // extern "C"
