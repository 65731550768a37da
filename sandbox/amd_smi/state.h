/* Emulated GPUs, read from a text file. Nothing here changes them. */
#ifndef SLICEWISE_AMD_SMI_STATE_H
#define SLICEWISE_AMD_SMI_STATE_H

#include "amd_smi.h"

enum { MAX_GPUS = 16, MAX_PARTITIONS = 8, MAX_PROCESSES = 64, TEXT = 96 };

typedef struct {
    unsigned int partition, pid, memory_mib;
} Process;

typedef struct {
    unsigned int device_id, bus, first_render, partitions, compute_units, memory_mib;
    unsigned int power_w, temperature_c, ecc_corrected, ecc_uncorrected;
    char uuid[TEXT], compute_mode[TEXT], memory_mode[TEXT], name[TEXT];
    unsigned int process_count;
    Process processes[MAX_PROCESSES];
} Gpu;

typedef struct {
    char driver[TEXT], fails[TEXT]; /* the call that fails, "-" for none */
    amdsmi_status_t code;
    unsigned int gpu_count;
    Gpu gpus[MAX_GPUS];
} State;

extern State state;

/* Read the file again; DRIVER_NOT_LOADED without one, or the failure that was ordered. */
amdsmi_status_t state_enter(const char *function);

#endif
