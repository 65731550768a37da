/* libamd_smi.so without a GPU: the calls that Slicewise makes, on emulated GPUs (state.h).
 *
 * A socket is a GPU, and has a processor for each partition. As with ROCm 7.0, only a GPU's first
 * partition answers what its modes are. All other calls of AMD's package are NOT_SUPPORTED
 * (library.py).
 */
#include "state.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* AMD's package has the same sizes (amdsmi_wrapper.py). */
_Static_assert(sizeof(amdsmi_asic_info_t) == 896, "amdsmi_asic_info_t");
_Static_assert(sizeof(amdsmi_proc_info_t) == 704, "amdsmi_proc_info_t");
_Static_assert(sizeof(amdsmi_power_info_t) == 192, "amdsmi_power_info_t");

#define EXPORT __attribute__((visibility("default")))
#define ENTER()                                                                                    \
    do {                                                                                           \
        amdsmi_status_t entered = initialised ? state_enter(__func__) : AMDSMI_STATUS_NOT_INIT;    \
        if (entered != AMDSMI_STATUS_SUCCESS)                                                      \
            return entered;                                                                        \
    } while (0)
#define NEED(condition, code)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return code;                                                                           \
    } while (0)

enum { VENDOR = 0x1002, MIB = 1024 * 1024 };

static unsigned int initialised;

/* A handle has the GPU's number from 1 on, then the partition's. */
static void *handle(unsigned int gpu, unsigned int partition)
{
    return (void *)((uintptr_t)(gpu + 1) << 8 | partition);
}

static unsigned int partition_of(const void *handle)
{
    return (uintptr_t)handle & 0xff;
}

static const Gpu *gpu_of(const void *handle)
{
    uintptr_t number = (uintptr_t)handle >> 8;
    const Gpu *gpu = number && number <= state.gpu_count ? &state.gpus[number - 1] : NULL;
    return gpu && partition_of(handle) < gpu->partitions ? gpu : NULL;
}

static void put(char *text, size_t size, const char *value)
{
    snprintf(text, size, "%s", value);
}

EXPORT amdsmi_status_t amdsmi_init(uint64_t flags)
{
    (void)flags;
    initialised++;
    amdsmi_status_t code = state_enter(__func__);
    initialised -= code != AMDSMI_STATUS_SUCCESS;
    return code;
}

EXPORT amdsmi_status_t amdsmi_shut_down(void)
{
    NEED(initialised, AMDSMI_STATUS_NOT_INIT);
    initialised = 0;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_socket_handles(uint32_t *count, amdsmi_socket_handle *handles)
{
    ENTER();
    for (unsigned int i = 0; handles && i < *count && i < state.gpu_count; i++)
        handles[i] = handle(i, 0);
    *count = state.gpu_count;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_processor_handles(amdsmi_socket_handle socket, uint32_t *count,
                                                    amdsmi_processor_handle *handles)
{
    ENTER();
    const Gpu *gpu = gpu_of(socket);
    NEED(gpu, AMDSMI_STATUS_INVAL);
    for (unsigned int i = 0; handles && i < *count && i < gpu->partitions; i++)
        handles[i] = handle((unsigned int)(gpu - state.gpus), i);
    *count = gpu->partitions;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_device_bdf(amdsmi_processor_handle device, amdsmi_bdf_t *bdf)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    *bdf = (amdsmi_bdf_t){partition_of(device), 0, gpu_of(device)->bus, 0};
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_device_uuid(amdsmi_processor_handle device, uint32_t *length,
                                                  char *uuid)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    NEED(strlen(gpu_of(device)->uuid) < *length, AMDSMI_STATUS_INSUFFICIENT_SIZE);
    put(uuid, *length, gpu_of(device)->uuid);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_asic_info(amdsmi_processor_handle device,
                                                amdsmi_asic_info_t *info)
{
    ENTER();
    const Gpu *gpu = gpu_of(device);
    NEED(gpu, AMDSMI_STATUS_INVAL);
    memset(info, 0, sizeof *info);
    put(info->market_name, sizeof info->market_name, gpu->name);
    info->vendor_id = VENDOR;
    info->device_id = gpu->device_id;
    info->num_of_compute_units = gpu->compute_units / gpu->partitions;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_enumeration_info(amdsmi_processor_handle device,
                                                       amdsmi_enumeration_info_t *info)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    memset(info, 0, sizeof *info);
    info->drm_render = gpu_of(device)->first_render + partition_of(device);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_kfd_info(amdsmi_processor_handle device,
                                               amdsmi_kfd_info_t *info)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    memset(info, 0, sizeof *info);
    info->current_partition_id = partition_of(device);
    return AMDSMI_STATUS_SUCCESS;
}

/* "-" stands for a GPU without modes. */
static amdsmi_status_t mode(amdsmi_processor_handle device, const char *value, char *text,
                            uint32_t length)
{
    NEED(partition_of(device) == 0 && strcmp(value, "-") != 0, AMDSMI_STATUS_NOT_SUPPORTED);
    NEED(strlen(value) < length, AMDSMI_STATUS_INSUFFICIENT_SIZE);
    put(text, length, value);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_compute_partition(amdsmi_processor_handle device, char *text,
                                                        uint32_t length)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    return mode(device, gpu_of(device)->compute_mode, text, length);
}

EXPORT amdsmi_status_t amdsmi_get_gpu_memory_partition(amdsmi_processor_handle device, char *text,
                                                       uint32_t length)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    return mode(device, gpu_of(device)->memory_mode, text, length);
}

EXPORT amdsmi_status_t amdsmi_get_gpu_vram_usage(amdsmi_processor_handle device,
                                                 amdsmi_vram_usage_t *usage)
{
    ENTER();
    const Gpu *gpu = gpu_of(device);
    NEED(gpu, AMDSMI_STATUS_INVAL);
    *usage = (amdsmi_vram_usage_t){gpu->memory_mib, 0, {0}};
    for (unsigned int i = 0; i < gpu->process_count; i++)
        usage->vram_used += gpu->processes[i].memory_mib;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_driver_info(amdsmi_processor_handle device,
                                                  amdsmi_driver_info_t *info)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    memset(info, 0, sizeof *info);
    put(info->driver_version, sizeof info->driver_version, state.driver);
    put(info->driver_name, sizeof info->driver_name, "amdgpu");
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_power_info(amdsmi_processor_handle device,
                                             amdsmi_power_info_t *info)
{
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    NEED(partition_of(device) == 0, AMDSMI_STATUS_NOT_SUPPORTED);
    memset(info, 0, sizeof *info);
    info->current_socket_power = gpu_of(device)->power_w;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_temp_metric(amdsmi_processor_handle device, uint32_t sensor,
                                              uint32_t metric, int64_t *temperature_c)
{
    (void)metric;
    ENTER();
    NEED(gpu_of(device), AMDSMI_STATUS_INVAL);
    NEED(partition_of(device) == 0 && sensor == AMDSMI_TEMPERATURE_TYPE_HOTSPOT,
         AMDSMI_STATUS_NOT_SUPPORTED);
    *temperature_c = gpu_of(device)->temperature_c;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_total_ecc_count(amdsmi_processor_handle device,
                                                      amdsmi_error_count_t *count)
{
    ENTER();
    const Gpu *gpu = gpu_of(device);
    NEED(gpu, AMDSMI_STATUS_INVAL);
    NEED(partition_of(device) == 0, AMDSMI_STATUS_NOT_SUPPORTED);
    *count = (amdsmi_error_count_t){gpu->ecc_corrected, gpu->ecc_uncorrected, 0, {0}};
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_process_list(amdsmi_processor_handle device, uint32_t *count,
                                                   amdsmi_proc_info_t *list)
{
    ENTER();
    const Gpu *gpu = gpu_of(device);
    NEED(gpu, AMDSMI_STATUS_INVAL);
    uint32_t room = *count;
    *count = 0;
    for (unsigned int i = 0; i < gpu->process_count; i++) {
        const Process *one = &gpu->processes[i];
        if (one->partition != partition_of(device) || *count == room)
            continue;
        amdsmi_proc_info_t *info = &list[(*count)++];
        memset(info, 0, sizeof *info);
        info->pid = one->pid;
        info->memory_usage.vram_mem = (uint64_t)one->memory_mib * MIB;
    }
    return AMDSMI_STATUS_SUCCESS;
}
