/* What boards have taken, and how busy their instances are (GPM). */
#define _GNU_SOURCE
#include "handles.h"

#include <stdlib.h>
#include <time.h>

struct Sample {
    unsigned int busy_ppm;
};

static unsigned long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                        unsigned long long *energy_mj)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board && board->energy.is_counted, NVML_ERROR_NOT_SUPPORTED);
    unsigned long long now = now_ms(), passed_ms = 0;
    if (!board->energy.is_at_rest && now > board->energy.at_ms)
        passed_ms = now - board->energy.at_ms;
    *energy_mj = board->energy.counter_mj + passed_ms * board->power_mw / 1000;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi,
                                        nvmlGpmSample_t sample)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board && instance_by_id(board, gi), NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned int i = 0; i < board->activity_count; i++)
        if (board->activities[i].gi == gi) {
            sample->busy_ppm = board->activities[i].busy_ppm;
            return state_leave(NVML_SUCCESS);
        }
    return state_leave(NVML_ERROR_NOT_SUPPORTED);
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    if (asked->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &asked->metrics[i];
        int is_known = metric->metricId == NVML_GPM_METRIC_SM_UTIL;
        metric->nvmlReturn = is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        metric->value = is_known ? asked->sample2->busy_ppm / 1e4 : 0;
    }
    return NVML_SUCCESS;
}
