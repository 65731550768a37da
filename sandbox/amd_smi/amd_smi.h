/* What Slicewise uses of AMD's library, as amdsmi.h of ROCm 7.0 lays it out; names and numbers are
 * AMD's. Members that are not filled in are room only.
 */
#ifndef SLICEWISE_AMD_SMI_H
#define SLICEWISE_AMD_SMI_H

#include <stdint.h>

typedef void *amdsmi_socket_handle;
typedef void *amdsmi_processor_handle;

typedef enum {
    AMDSMI_STATUS_SUCCESS = 0,
    AMDSMI_STATUS_INVAL = 1,
    AMDSMI_STATUS_NOT_SUPPORTED = 2,
    AMDSMI_STATUS_INSUFFICIENT_SIZE = 41,
    AMDSMI_STATUS_NOT_INIT = 32,
    AMDSMI_STATUS_DRIVER_NOT_LOADED = 34,
} amdsmi_status_t;

enum { AMDSMI_MAX_STRING_LENGTH = 256, AMDSMI_TEMPERATURE_TYPE_HOTSPOT = 1 };

typedef struct {
    uint64_t function_number : 3, device_number : 5, bus_number : 8, domain_number : 48;
} amdsmi_bdf_t;

typedef struct {
    char market_name[AMDSMI_MAX_STRING_LENGTH];
    uint32_t vendor_id;
    char vendor_name[AMDSMI_MAX_STRING_LENGTH];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[AMDSMI_MAX_STRING_LENGTH];
    uint32_t oam_id, num_of_compute_units;
    uint64_t target_graphics_version;
    uint32_t subsystem_id, reserved[21];
} amdsmi_asic_info_t;

typedef struct {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[AMDSMI_MAX_STRING_LENGTH];
} amdsmi_enumeration_info_t;

typedef struct {
    uint64_t kfd_id;
    uint32_t node_id, current_partition_id, reserved[12];
} amdsmi_kfd_info_t;

typedef struct {
    uint32_t vram_total, vram_used, reserved[2]; /* MiB */
} amdsmi_vram_usage_t;

typedef struct {
    char driver_version[AMDSMI_MAX_STRING_LENGTH];
    char driver_date[AMDSMI_MAX_STRING_LENGTH];
    char driver_name[AMDSMI_MAX_STRING_LENGTH];
} amdsmi_driver_info_t;

typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power; /* W */
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
} amdsmi_power_info_t;

typedef struct {
    uint64_t correctable_count, uncorrectable_count, deferred_count, reserved[5];
} amdsmi_error_count_t;

typedef struct {
    char name[AMDSMI_MAX_STRING_LENGTH];
    uint32_t pid;
    uint64_t mem;
    struct {
        uint64_t gfx, enc;
        uint32_t reserved[12];
    } engine_usage;
    struct {
        uint64_t gtt_mem, cpu_mem, vram_mem; /* bytes */
        uint32_t reserved[10];
    } memory_usage;
    char container_name[AMDSMI_MAX_STRING_LENGTH];
    uint32_t cu_occupancy, reserved[11];
} amdsmi_proc_info_t;

#endif
