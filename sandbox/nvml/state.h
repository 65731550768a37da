/* Emulated boards, kept in a text file that several processes share. */
#ifndef SLICEWISE_STATE_H
#define SLICEWISE_STATE_H

#include "nvml.h"

enum {
    MAX_BOARDS = 16,
    MAX_STARTS = 16,
    MAX_INSTANCES = 16,
    MAX_COMPUTES = 64,
    MAX_PROCESSES = 64,
    MAX_ACTIVITIES = 16,
    MAX_FAILURES = 16,
    TEXT = 96,
};

typedef struct {
    unsigned int kind; /* NVML_GPU_INSTANCE_PROFILE_* */
    unsigned int id, slices, size, memory_mib, sm, max;
    unsigned int start_count, starts[MAX_STARTS];
    char name[TEXT];
} Profile;

typedef struct {
    unsigned int id, profile_id, start;
} Instance;

typedef struct {
    unsigned int gi, id, profile_id;
} Compute;

typedef struct {
    int gi, ci; /* -1 for a board that is not cut */
    unsigned int pid, memory_mib;
} Process;

typedef struct {
    unsigned int gi, busy_ppm;
} Activity;

/* What a board has taken up to a moment of CLOCK_BOOTTIME; since then its power goes on. A board at
 * rest takes nothing more: its counter is what a test says. */
typedef struct {
    int is_counted, is_at_rest;
    unsigned long long counter_mj, at_ms;
} Energy;

typedef struct {
    unsigned int pci_device_id, minor, mig, mig_pending, memory_mib;
    unsigned int is_lost; /* it fell off the bus: no handle of it is given */
    unsigned int power_mw, power_limit_mw, temperature_c;
    unsigned int ecc_corrected, ecc_uncorrected, remap_pending, remap_failed;
    char bus_id[TEXT], uuid[TEXT], name[TEXT];
    unsigned int memory_slices;
    unsigned int profile_count, instance_count, compute_count, process_count, activity_count;
    Profile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
    Instance instances[MAX_INSTANCES];
    Compute computes[MAX_COMPUTES];
    Process processes[MAX_PROCESSES];
    Activity activities[MAX_ACTIVITIES];
    Energy energy;
} Board;

typedef struct {
    char function[TEXT];
    unsigned int at_call;
    nvmlReturn_t code;
} Failure;

typedef struct {
    char driver[TEXT];
    unsigned int board_count, failure_count;
    Board boards[MAX_BOARDS];
    Failure failures[MAX_FAILURES];
} State;

/* The boards as they are, valid between state_enter and state_leave. */
extern State state;

/* Lock and read; an error is final: the call returns it without state_leave. */
nvmlReturn_t state_enter(const char *function);

/* Unlock and pass the code on. */
nvmlReturn_t state_leave(nvmlReturn_t code);

/* Write what was changed, and unlock. NO_PERMISSION if the file can't be written. */
nvmlReturn_t state_keep(void);

#endif
