// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A program in C++ that runs a module on several devices from several threads: a session for each.
//
//   embed_cc MODULE.vmfb [DEVICE…]
//
// A session belongs to one thread at a time. Devices may be shared: two of the threads use the first one.

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hal_drivers.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/runtime/api.h"

namespace {

constexpr int kCount = 1024, kCalls = 100;

// An object of IREE's that is released at the end.
template <typename T, void (*kRelease)(T*)>
struct Release {
  void operator()(T* object) const { kRelease(object); }
};
template <typename T, void (*kRelease)(T*)>
using Owned = std::unique_ptr<T, Release<T, kRelease>>;
using Instance = Owned<iree_runtime_instance_t, iree_runtime_instance_release>;
using Device = Owned<iree_hal_device_t, iree_hal_device_release>;
using Session = Owned<iree_runtime_session_t, iree_runtime_session_release>;
using View = Owned<iree_hal_buffer_view_t, iree_hal_buffer_view_release>;

iree_status_t Open(const std::string& uri, Device* out_device) {
  iree_async_proactor_pool_t* pool = nullptr;
  IREE_RETURN_IF_ERROR(iree_async_proactor_pool_create(1, nullptr, iree_async_proactor_pool_options_default(),
                                                       iree_allocator_system(), &pool));
  iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
  params.proactor_pool = pool;
  iree_hal_device_t* device = nullptr;
  iree_status_t status = iree_hal_create_device(iree_hal_driver_registry_default(),
                                                iree_make_string_view(uri.data(), uri.size()), &params,
                                                iree_allocator_system(), &device);
  iree_async_proactor_pool_release(pool);
  out_device->reset(device);
  return status;
}

// Calls the module's `square` and counts the values that are wrong.
iree_status_t Call(iree_runtime_session_t* session, float first, int* wrong) {
  iree_hal_device_t* device = iree_runtime_session_device(session);
  std::array<float, kCount> values;
  for (int i = 0; i < kCount; ++i) values[i] = first + static_cast<float>(i);
  const std::array<float, kCount> input = values;
  const iree_hal_dim_t shape[1] = {kCount};
  iree_hal_buffer_params_t params = {};
  params.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
  params.usage = IREE_HAL_BUFFER_USAGE_DEFAULT;
  iree_hal_buffer_view_t* view = nullptr;
  IREE_RETURN_IF_ERROR(iree_hal_buffer_view_allocate_buffer_copy(
      device, iree_hal_device_allocator(device), 1, shape, IREE_HAL_ELEMENT_TYPE_FLOAT_32,
      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, params, iree_make_const_byte_span(input.data(), sizeof(input)), &view));
  View argument(view);
  iree_runtime_call_t call;
  IREE_RETURN_IF_ERROR(iree_runtime_call_initialize_by_name(session, iree_make_cstring_view("module.square"), &call));
  iree_status_t status = iree_runtime_call_inputs_push_back_buffer_view(&call, argument.get());
  if (iree_status_is_ok(status)) status = iree_runtime_call_invoke(&call, 0);
  iree_hal_buffer_view_t* result = nullptr;
  if (iree_status_is_ok(status)) status = iree_runtime_call_outputs_pop_front_buffer_view(&call, &result);
  View output(result);
  iree_runtime_call_deinitialize(&call);
  IREE_RETURN_IF_ERROR(status);
  IREE_RETURN_IF_ERROR(iree_hal_device_transfer_d2h(device, iree_hal_buffer_view_buffer(output.get()), 0, values.data(),
                                                    sizeof(values), IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT,
                                                    iree_infinite_timeout()));
  for (int i = 0; i < kCount; ++i) *wrong += values[i] != input[i] * input[i];
  return iree_ok_status();
}

// What one thread does: a session of its own on a device that it may share.
iree_status_t Work(iree_runtime_instance_t* instance, iree_hal_device_t* device, const char* module, int number,
                   int* wrong) {
  iree_runtime_session_options_t options;
  iree_runtime_session_options_initialize(&options);
  iree_runtime_session_t* made = nullptr;
  IREE_RETURN_IF_ERROR(
      iree_runtime_session_create_with_device(instance, &options, device, iree_allocator_system(), &made));
  Session session(made);
  IREE_RETURN_IF_ERROR(iree_runtime_session_append_bytecode_module_from_file(session.get(), module));
  for (int i = 0; i < kCalls; ++i) {
    IREE_RETURN_IF_ERROR(Call(session.get(), static_cast<float>(number * kCalls + i), wrong));
  }
  return iree_ok_status();
}

iree_status_t Run(const char* module, const std::vector<std::string>& uris, int* wrong) {
  IREE_RETURN_IF_ERROR(hal_drivers_register_all(iree_hal_driver_registry_default()));
  iree_runtime_instance_options_t options;
  iree_runtime_instance_options_initialize(&options);
  iree_runtime_instance_t* made = nullptr;
  IREE_RETURN_IF_ERROR(iree_runtime_instance_create(&options, iree_allocator_system(), &made));
  Instance instance(made);
  std::vector<Device> devices(uris.size());
  for (size_t i = 0; i < uris.size(); ++i) {
    IREE_RETURN_IF_ERROR(Open(uris[i], &devices[i]));
  }
  const size_t count = devices.size() + 1;
  std::vector<iree_status_t> statuses(count);
  std::vector<int> errors(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    iree_hal_device_t* device = devices[i % devices.size()].get();
    threads.emplace_back([&, device, i] {
      statuses[i] = Work(instance.get(), device, module, static_cast<int>(i), &errors[i]);
    });
  }
  iree_status_t status = iree_ok_status();
  for (size_t i = 0; i < count; ++i) {
    threads[i].join();
    status = iree_status_join(status, statuses[i]);
    *wrong += errors[i];
  }
  if (iree_status_is_ok(status)) {
    std::printf("%zu threads on %zu devices, %d calls each, %d values wrong\n", count, devices.size(), kCalls, *wrong);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODULE.vmfb [DEVICE...]\n", argv[0]);
    return 2;
  }
  std::vector<std::string> uris(argv + 2, argv + argc);
  if (uris.empty()) uris = {"mock://0", "mock://1"};
  int wrong = 0;
  iree_status_t status = Run(argv[1], uris, &wrong);
  if (iree_status_is_ok(status)) return wrong == 0 ? 0 : 1;
  iree_status_fprint(stderr, status);
  iree_status_free(status);
  return 1;
}
