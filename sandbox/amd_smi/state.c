/* Reads the emulated GPUs that sandbox/amd_smi/driver.py writes. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 4096, LINE_SIZE = 1024 };

State state;

static void read_line(const char *line)
{
    unsigned int number;
    Process one;
    Gpu gpu = {0};
    sscanf(line, "driver %95s", state.driver);
    sscanf(line, "fail %95s %u", state.fails, &state.code);
    if (state.gpu_count < MAX_GPUS &&
        sscanf(line, "gpu %x %u %u %u %u %u %u %u %u %u %95s %95s %95s %95[^\n]", &gpu.device_id,
               &gpu.bus, &gpu.first_render, &gpu.partitions, &gpu.compute_units, &gpu.memory_mib,
               &gpu.power_w, &gpu.temperature_c, &gpu.ecc_corrected, &gpu.ecc_uncorrected, gpu.uuid,
               gpu.compute_mode, gpu.memory_mode, gpu.name) == 14)
        state.gpus[state.gpu_count++] = gpu;
    if (sscanf(line, "process %u %u %u %u", &number, &one.partition, &one.pid, &one.memory_mib) ==
            4 &&
        number < state.gpu_count && state.gpus[number].process_count < MAX_PROCESSES)
        state.gpus[number].processes[state.gpus[number].process_count++] = one;
}

amdsmi_status_t state_enter(const char *function)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    const char *directory = getenv("SLICEWISE_AMD_SMI_DIR");
    memset(&state, 0, sizeof state);
    if (!directory || snprintf(path, sizeof path, "%s/state", directory) >= PATH_SIZE)
        return AMDSMI_STATUS_DRIVER_NOT_LOADED;
    FILE *file = fopen(path, "re");
    if (!file)
        return AMDSMI_STATUS_DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    return strcmp(state.fails, function) == 0 ? state.code : AMDSMI_STATUS_SUCCESS;
}
