// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The drivers of this library: one registration function for each.
//
// Each adds its driver to a registry of IREE's. That is cheap and touches no hardware; devices are searched when the
// driver is asked for them. Registering a driver twice answers ALREADY_EXISTS and changes nothing.

#ifndef HAL_DRIVERS_H_
#define HAL_DRIVERS_H_

#include "iree/hal/api.h"

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

// Every driver of this library, for applications that choose by URI. Stops at the first driver that cannot be added.
iree_status_t hal_drivers_register_all(iree_hal_driver_registry_t* registry);

// Appends to a builder what this process waits for, on all devices of this library: text for people, or JSON. For a
// program that hangs: it may be called on any thread, waits for nothing that may never end, and takes about a tenth of
// a second. See docs/programs.md.
typedef enum hal_stall_format_e {
  HAL_STALL_FORMAT_TEXT = 0,
  HAL_STALL_FORMAT_JSON = 1,
} hal_stall_format_t;
iree_status_t hal_drivers_stall_report(hal_stall_format_t format,
                                       iree_string_builder_t* builder);

// gaudi://  Intel Gaudi and Gaudi 2, and gaudi://emulated; see docs/gaudi.md.
iree_status_t iree_hal_gaudi_driver_module_register(
    iree_hal_driver_registry_t* registry);

// mock://  A device in software; see docs/without-a-card.md.
iree_status_t iree_hal_mock_driver_module_register(
    iree_hal_driver_registry_t* registry);

// nvidia://  NVIDIA cards, and nvidia://emulated; see docs/cuda.md. IREE's own driver is cuda://.
iree_status_t iree_hal_nvidia_driver_module_register(
    iree_hal_driver_registry_t* registry);

// qaic://  Qualcomm Cloud AI 100, and qaic://emulated; see docs/qaic.md.
iree_status_t iree_hal_qaic_driver_module_register(
    iree_hal_driver_registry_t* registry);

// template://  The backend that others begin with. Only where the library has the feature `template`.
iree_status_t iree_hal_template_driver_module_register(
    iree_hal_driver_registry_t* registry);

// tenstorrent://  Tenstorrent Blackhole and Wormhole, and tenstorrent://emulated; see docs/tenstorrent.md.
iree_status_t iree_hal_tenstorrent_driver_module_register(
    iree_hal_driver_registry_t* registry);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  // HAL_DRIVERS_H_
