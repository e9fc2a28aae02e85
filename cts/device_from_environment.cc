// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The device under test and the executables for it, as the environment names them.
//
// One binary serves every device:
//
//   HAL_CTS_DEVICE       the device's URI, such as mock or mock://0?queues=4
//   HAL_CTS_NAME         what it is called in the names of the tests
//   HAL_CTS_TESTDATA     a folder with one folder for each format: FORMAT/NAME.bin
//   HAL_CTS_FORMATS      the formats, as NAME=FORMAT;NAME=FORMAT
//   HAL_CTS_UNSUPPORTED  what the device says it cannot do, as PATTERN=REASON;PATTERN=REASON

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "iree/hal/api.h"
#include "iree/hal/cts/util/registry.h"
#include "iree/hal/drivers/init.h"

namespace iree::hal::cts {
namespace {

std::string Setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

// KEY=VALUE;KEY=VALUE, in order.
std::vector<std::pair<std::string, std::string>> Pairs(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find(';', begin);
    if (end == std::string::npos) end = text.size();
    std::string pair = text.substr(begin, end - begin);
    size_t equals = pair.find('=');
    if (equals != std::string::npos) {
      pairs.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    }
    begin = end + 1;
  }
  return pairs;
}

iree_status_t CreateDevice(const iree_hal_device_create_params_t* create_params,
                           iree_hal_driver_t** out_driver,
                           iree_hal_device_t** out_device) {
  static bool registered = false;
  if (!registered) {
    IREE_RETURN_IF_ERROR(iree_hal_register_all_available_drivers(
        iree_hal_driver_registry_default()));
    registered = true;
  }
  std::string uri = Setting("HAL_CTS_DEVICE", "mock");
  std::string name = uri.substr(0, uri.find(':'));
  iree_hal_driver_t* driver = nullptr;
  IREE_RETURN_IF_ERROR(iree_hal_driver_registry_try_create(
      iree_hal_driver_registry_default(),
      iree_make_string_view(name.data(), name.size()), iree_allocator_system(),
      &driver));
  iree_hal_device_t* device = nullptr;
  iree_status_t status = iree_hal_driver_create_device_by_uri(
      driver, iree_make_string_view(uri.data(), uri.size()), create_params,
      iree_allocator_system(), &device);
  if (!iree_status_is_ok(status)) {
    iree_hal_driver_release(driver);
    return status;
  }
  *out_driver = driver;
  *out_device = device;
  return iree_ok_status();
}

// A compiled executable, read once and kept.
iree_const_byte_span_t ExecutableData(const std::string& format,
                                      iree_string_view_t file_name) {
  static std::map<std::string, std::string> files;
  std::string path = Setting("HAL_CTS_TESTDATA", ".") + "/" + format + "/" +
                     std::string(file_name.data, file_name.size);
  auto found = files.find(path);
  if (found == files.end()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return iree_const_byte_span_empty();
    std::string data((std::istreambuf_iterator<char>(file)),
                     std::istreambuf_iterator<char>());
    found = files.emplace(path, std::move(data)).first;
  }
  return iree_make_const_byte_span(found->second.data(), found->second.size());
}

// IREE asks for a plain function for each format.
constexpr size_t kMaxFormats = 4;
std::string format_names[kMaxFormats];
std::string format_strings[kMaxFormats];

template <size_t kIndex>
iree_const_byte_span_t FormatData(iree_string_view_t file_name) {
  return ExecutableData(format_names[kIndex], file_name);
}

constexpr ExecutableDataFn kFormatData[kMaxFormats] = {
    FormatData<0>, FormatData<1>, FormatData<2>, FormatData<3>};

bool Register() {
  // Kept for as long as the registry, which keeps the pointer.
  static const std::string name = Setting("HAL_CTS_NAME", "mock");
  std::vector<TestUnsupported> unsupported;
  for (const auto& pair : Pairs(Setting("HAL_CTS_UNSUPPORTED", ""))) {
    unsupported.push_back({pair.first, pair.second});
  }
  CtsRegistry::RegisterBackend(
      {name.c_str(),
       {name, CreateDevice, /*executable_format=*/nullptr,
        /*executable_data=*/nullptr, RecordingMode::kDirect, unsupported,
        /*expected_failures=*/{}},
       {"async_queue", "events", "file_io", "host_calls", "mapping",
        "indirect"},
       /*executable_formats=*/{}});
  size_t index = 0;
  for (const auto& pair : Pairs(Setting(
           "HAL_CTS_FORMATS",
           "llvm_cpu=embedded-elf-" IREE_ARCH ";vmvx=vmvx-bytecode-fb"))) {
    if (index == kMaxFormats) break;
    format_names[index] = pair.first;
    format_strings[index] = pair.second;
    CtsRegistry::RegisterExecutableFormat(
        name.c_str(),
        {pair.first, format_strings[index].c_str(), kFormatData[index]});
    ++index;
  }
  return true;
}

const bool registered = Register();

}  // namespace
}  // namespace iree::hal::cts
