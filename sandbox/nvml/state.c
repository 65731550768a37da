#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, LINE_SIZE = 1024 };

State state;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static int lock = -1;

static int place(char *path, const char *file)
{
    const char *directory = getenv("SLICEWISE_NVML_DIR");
    return directory && snprintf(path, PATH_SIZE, "%s/%s", directory, file) < PATH_SIZE;
}

static void read_profile(Board *board, const char *line)
{
    Profile profile = {0};
    char starts[TEXT], *rest = starts;
    if (board->profile_count == NVML_GPU_INSTANCE_PROFILE_COUNT ||
        sscanf(line, "profile %*u %u %u %u %u %u %u %u %95s %95s", &profile.kind, &profile.id,
               &profile.slices, &profile.size, &profile.memory_mib, &profile.sm, &profile.max,
               profile.name, starts) != 9)
        return;
    for (char *text; profile.start_count < MAX_STARTS && (text = strsep(&rest, ","));)
        profile.starts[profile.start_count++] = (unsigned int)atoi(text);
    board->profiles[board->profile_count++] = profile;
}

static void read_of_board(Board *board, const char *line)
{
    Instance *instance = &board->instances[board->instance_count];
    Compute *compute = &board->computes[board->compute_count];
    Process *process = &board->processes[board->process_count];
    Activity *activity = &board->activities[board->activity_count];
    read_profile(board, line);
    sscanf(line, "board %*u %x %u %u %u %u %u %95s %95s %95[^\n]", &board->pci_device_id,
           &board->minor, &board->mig, &board->mig_pending, &board->memory_mib,
           &board->memory_slices, board->bus_id, board->uuid, board->name);
    sscanf(line, "reading %*u %u %u %u", &board->power_mw, &board->power_limit_mw,
           &board->temperature_c);
    if (strncmp(line, "lost ", 5) == 0)
        board->is_lost = 1;
    sscanf(line, "errors %*u %u %u %u %u", &board->ecc_corrected, &board->ecc_uncorrected,
           &board->remap_pending, &board->remap_failed);
    if (board->instance_count < MAX_INSTANCES &&
        sscanf(line, "instance %*u %u %u %u", &instance->id, &instance->profile_id,
               &instance->start) == 3)
        board->instance_count++;
    if (board->compute_count < MAX_COMPUTES &&
        sscanf(line, "compute %*u %u %u %u", &compute->gi, &compute->id, &compute->profile_id) == 3)
        board->compute_count++;
    if (board->process_count < MAX_PROCESSES &&
        sscanf(line, "process %*u %d %d %u %u", &process->gi, &process->ci, &process->pid,
               &process->memory_mib) == 4)
        board->process_count++;
    if (sscanf(line, "energy %*u %llu %llu %d", &board->energy.counter_mj, &board->energy.at_ms,
               &board->energy.is_at_rest) == 3)
        board->energy.is_counted = 1;
    if (board->activity_count < MAX_ACTIVITIES &&
        sscanf(line, "activity %*u %u %u", &activity->gi, &activity->busy_ppm) == 2)
        board->activity_count++;
}

static void read_line(const char *line)
{
    unsigned int number;
    Failure *failure = &state.failures[state.failure_count];
    sscanf(line, "driver %95s", state.driver);
    if (state.failure_count < MAX_FAILURES &&
        sscanf(line, "fail %95s %u %d", failure->function, &failure->at_call, &failure->code) == 3)
        state.failure_count++;
    if (sscanf(line, "%*s %u", &number) == 1 && number < MAX_BOARDS &&
        strncmp(line, "driver ", 7) != 0 && strncmp(line, "fail ", 5) != 0) {
        if (number >= state.board_count)
            state.board_count = number + 1;
        read_of_board(&state.boards[number], line);
    }
}

static int read_state(void)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    FILE *file = place(path, "state") ? fopen(path, "re") : NULL;
    memset(&state, 0, sizeof state);
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    return 1;
}

static void write_board(FILE *file, unsigned int number)
{
    const Board *board = &state.boards[number];
    fprintf(file, "board %u %x %u %u %u %u %u %s %s %s\n", number, board->pci_device_id,
            board->minor, board->mig, board->mig_pending, board->memory_mib, board->memory_slices,
            board->bus_id, board->uuid, board->name);
    fprintf(file, "reading %u %u %u %u\n", number, board->power_mw, board->power_limit_mw,
            board->temperature_c);
    fprintf(file, "errors %u %u %u %u %u\n", number, board->ecc_corrected, board->ecc_uncorrected,
            board->remap_pending, board->remap_failed);
    if (board->is_lost)
        fprintf(file, "lost %u\n", number);
    for (unsigned int i = 0; i < board->profile_count; i++) {
        const Profile *one = &board->profiles[i];
        fprintf(file, "profile %u %u %u %u %u %u %u %u %s ", number, one->kind, one->id,
                one->slices, one->size, one->memory_mib, one->sm, one->max, one->name);
        for (unsigned int j = 0; j < one->start_count; j++)
            fprintf(file, "%s%u", j ? "," : "", one->starts[j]);
        fputc('\n', file);
    }
    for (unsigned int i = 0; i < board->instance_count; i++)
        fprintf(file, "instance %u %u %u %u\n", number, board->instances[i].id,
                board->instances[i].profile_id, board->instances[i].start);
    for (unsigned int i = 0; i < board->compute_count; i++)
        fprintf(file, "compute %u %u %u %u\n", number, board->computes[i].gi,
                board->computes[i].id, board->computes[i].profile_id);
    for (unsigned int i = 0; i < board->process_count; i++)
        fprintf(file, "process %u %d %d %u %u\n", number, board->processes[i].gi,
                board->processes[i].ci, board->processes[i].pid, board->processes[i].memory_mib);
    if (board->energy.is_counted)
        fprintf(file, "energy %u %llu %llu %d\n", number, board->energy.counter_mj,
                board->energy.at_ms, board->energy.is_at_rest);
    for (unsigned int i = 0; i < board->activity_count; i++)
        fprintf(file, "activity %u %u %u\n", number, board->activities[i].gi,
                board->activities[i].busy_ppm);
}

/* A complete file replaces the old one: if the process is killed here, the old one stays. */
static int write_state(void)
{
    char path[PATH_SIZE], fresh[PATH_SIZE];
    FILE *file = place(path, "state") && place(fresh, "state.new") ? fopen(fresh, "we") : NULL;
    if (!file)
        return 0;
    fprintf(file, "driver %s\n", state.driver);
    for (unsigned int i = 0; i < state.failure_count; i++)
        fprintf(file, "fail %s %u %d\n", state.failures[i].function, state.failures[i].at_call,
                state.failures[i].code);
    for (unsigned int i = 0; i < state.board_count; i++)
        write_board(file, i);
    return fclose(file) == 0 && rename(fresh, path) == 0;
}

/* The failure that was ordered for this call: each call counts down, and the last one fails. */
static nvmlReturn_t ordered_failure(const char *function)
{
    nvmlReturn_t code = NVML_SUCCESS;
    unsigned int kept = 0, found = 0;
    for (unsigned int i = 0; i < state.failure_count; i++) {
        Failure one = state.failures[i];
        int is_it = strcmp(one.function, function) == 0;
        found += is_it;
        if (is_it && --one.at_call == 0)
            code = one.code;
        else
            state.failures[kept++] = one;
    }
    state.failure_count = kept;
    if (found)
        write_state();
    return code;
}

nvmlReturn_t state_enter(const char *function)
{
    char path[PATH_SIZE];
    pthread_mutex_lock(&threads);
    lock = place(path, "lock") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (lock < 0 || flock(lock, LOCK_EX) != 0 || !read_state())
        return state_leave(NVML_ERROR_DRIVER_NOT_LOADED);
    nvmlReturn_t code = ordered_failure(function);
    return code == NVML_SUCCESS ? code : state_leave(code);
}

nvmlReturn_t state_leave(nvmlReturn_t code)
{
    if (lock >= 0)
        close(lock);
    lock = -1;
    pthread_mutex_unlock(&threads);
    return code;
}

nvmlReturn_t state_keep(void)
{
    return state_leave(write_state() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION);
}
