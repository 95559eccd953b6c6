/* Checks for the test programs: a failed one prints its line and ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef CHECK_WITHOUT_LIBRARY
#define LAST_ERROR "unknown"
#else
#define LAST_ERROR shm_pool_last_error()
#endif

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition,                  \
                    LAST_ERROR);                                                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define OK(call) CHECK((call) == SHM_POOL_STATUS_OK)
#define FAILS(call, code) CHECK((call) == SHM_POOL_STATUS_##code && shm_pool_last_status() == SHM_POOL_STATUS_##code)

#define SECOND UINT64_C(1000000000)

#endif
