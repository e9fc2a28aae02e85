// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Everything of IREE that the driver calls or implements, and what programs load and call modules with.
#include "iree/async/api.h"
#include "iree/async/frontier.h"
#include "iree/async/frontier_tracker.h"
#include "iree/async/notification.h"
#include "iree/async/operations/scheduling.h"
#include "iree/async/proactor.h"
#include "iree/async/semaphore.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/base/api.h"
#include "iree/base/internal/cpu.h"
#include "iree/hal/api.h"
#include "iree/hal/drivers/local_sync/registration/driver_module.h"
#include "iree/hal/drivers/local_task/registration/driver_module.h"
#include "iree/hal/local/executable_library.h"
#include "iree/hal/local/executable_loader.h"
#include "iree/hal/local/executable_plugin_manager.h"
#include "iree/hal/local/loaders/registration/init.h"
#include "iree/hal/local/local_executable.h"
#include "iree/hal/local/local_executable_cache.h"
#include "iree/hal/local/plugins/registration/init.h"
#include "iree/hal/local/profile.h"
#include "iree/hal/local/transient_buffer.h"
#include "iree/hal/memory/fixed_block_pool.h"
#include "iree/hal/memory/passthrough_pool.h"
#include "iree/hal/memory/slab_provider.h"
#include "iree/hal/memory/tlsf_pool.h"
#include "iree/hal/utils/file_registry.h"
#include "iree/hal/utils/profile_file.h"
#include "iree/hal/utils/resource_set.h"
#include "iree/io/formats/parser_registry.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/hal/module.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/runtime/api.h"

// Declared here because iree/vm/bytecode/module.h includes headers that only IREE's own build generates.
IREE_API_EXPORT iree_status_t iree_vm_bytecode_module_create(
    iree_vm_instance_t* instance, uint32_t flags, iree_const_byte_span_t archive_contents,
    iree_allocator_t archive_allocator, iree_allocator_t allocator, iree_vm_module_t** out_module);
