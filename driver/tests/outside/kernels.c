/* Bodies of the kernels whose results cuda.core's and numba-cuda's tests look at. The simulator
 * gives a kernel the addresses of its parameters, as cuLaunchKernel takes them. */
#include <stddef.h>
#include <time.h>

#define PARAMETER(type, index) (*(type *)parameters[index])

void add_one(void **parameters) { ++*PARAMETER(int *, 0); }

void affine(void **parameters) {
    int *value = PARAMETER(int *, 0);
    *value = *value * PARAMETER(int, 1) + PARAMETER(int, 2);
}

void combine(void **parameters) {
    *PARAMETER(int *, 0) = (*PARAMETER(int *, 1) << 16) | (*PARAMETER(int *, 2) & 0xFFFF);
}

void reduce(void **parameters) {
    int *sum = PARAMETER(int *, 0);
    const int *values = PARAMETER(int *, 1);
    size_t count = PARAMETER(size_t, 2);
    for (size_t i = 0; i < count; i++) *sum += values[i];
}

void sleep_a_while(void **parameters) {
    (void)parameters;
    struct timespec length = {0, 20 * 1000 * 1000};
    nanosleep(&length, NULL);
}

void zero_bytes(void **parameters) {
    char *bytes = PARAMETER(char *, 0);
    size_t count = PARAMETER(size_t, 1);
    for (size_t i = 0; i < count; i++) bytes[i] = 0;
}

void add_one_to_bytes(void **parameters) {
    char *bytes = PARAMETER(char *, 0);
    size_t count = PARAMETER(size_t, 1);
    for (size_t i = 0; i < count; i++) bytes[i] += 1;
}

void count_up(void **parameters) {
    int *numbers = PARAMETER(int *, 0);
    for (int i = 0; i < 100; i++) numbers[i] = i;
}
