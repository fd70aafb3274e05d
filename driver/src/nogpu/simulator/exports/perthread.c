/* The forms for programs whose stream 0 is the calling thread's own (cuGetProcAddress flag 2), made
 * from the rows of functions.h. */
#include "../driver.h"

#include "../api.h"

static CUstream or_mine(CUstream stream) { return stream != NULL ? stream : STREAM_PER_THREAD; }

/* A stream parameter of 0 becomes the thread's own. All other parameters go on as they are. The
 * type of the parameter decides, at compile time. */
#define AS_STREAM(parameter) _Generic((parameter), CUstream: (parameter), default: NULL)
#define MINE(parameter)                                                                            \
    _Generic((parameter), CUstream: or_mine(AS_STREAM(parameter)), default: (parameter))

/* From types to parameters and arguments, numbered from the last: (CUevent, CUstream) becomes
 * CUevent p2, CUstream p1 and MINE(p2), MINE(p1). */
#define COUNT(...) COUNT_(__VA_ARGS__, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, )
#define COUNT_(a, b, c, d, e, f, g, h, i, j, k, count, ...) count
#define PASTE(first, second) PASTE_(first, second)
#define PASTE_(first, second) first##second
#define TAKEN(...) PASTE(TAKEN_, COUNT(__VA_ARGS__))(__VA_ARGS__)
#define TAKEN_1(type) type p1
#define TAKEN_2(type, ...) type p2, TAKEN_1(__VA_ARGS__)
#define TAKEN_3(type, ...) type p3, TAKEN_2(__VA_ARGS__)
#define TAKEN_4(type, ...) type p4, TAKEN_3(__VA_ARGS__)
#define TAKEN_5(type, ...) type p5, TAKEN_4(__VA_ARGS__)
#define TAKEN_6(type, ...) type p6, TAKEN_5(__VA_ARGS__)
#define TAKEN_7(type, ...) type p7, TAKEN_6(__VA_ARGS__)
#define TAKEN_8(type, ...) type p8, TAKEN_7(__VA_ARGS__)
#define TAKEN_9(type, ...) type p9, TAKEN_8(__VA_ARGS__)
#define TAKEN_10(type, ...) type p10, TAKEN_9(__VA_ARGS__)
#define TAKEN_11(type, ...) type p11, TAKEN_10(__VA_ARGS__)
#define GIVEN(...) PASTE(GIVEN_, COUNT(__VA_ARGS__))
#define GIVEN_1 MINE(p1)
#define GIVEN_2 MINE(p2), GIVEN_1
#define GIVEN_3 MINE(p3), GIVEN_2
#define GIVEN_4 MINE(p4), GIVEN_3
#define GIVEN_5 MINE(p5), GIVEN_4
#define GIVEN_6 MINE(p6), GIVEN_5
#define GIVEN_7 MINE(p7), GIVEN_6
#define GIVEN_8 MINE(p8), GIVEN_7
#define GIVEN_9 MINE(p9), GIVEN_8
#define GIVEN_10 MINE(p10), GIVEN_9
#define GIVEN_11 MINE(p11), GIVEN_10

#define DEFINE_none(symbol, parameters)
#define DEFINE_own(symbol, parameters)
#define DEFINE_ptsz(symbol, parameters)                                                            \
    EXPORT CUresult symbol##_ptsz(TAKEN parameters) { return symbol(GIVEN parameters); }
#define DEFINE_ptds(symbol, parameters)                                                            \
    EXPORT CUresult symbol(TAKEN parameters) {                                                     \
        return on_##symbol(STREAM_LEGACY, GIVEN parameters);                                       \
    }                                                                                              \
    EXPORT CUresult symbol##_ptds(TAKEN parameters) {                                              \
        return on_##symbol(STREAM_PER_THREAD, GIVEN parameters);                                   \
    }
#define CALL(name, version, symbol, forms, parameters) DEFINE_##forms(symbol, parameters)
#define AGAIN CALL
#include "../functions.h"

/* Its stream is in a struct. (cuGraphInstantiateWithParams has one in a struct too, for the upload,
 * which does nothing here.) */
EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                      void **parameters, void **extra) {
    if (config == NULL || config->stream != NULL)
        return cuLaunchKernelEx(config, function, parameters, extra);
    CUlaunchConfig mine = *config;
    mine.stream = STREAM_PER_THREAD;
    return cuLaunchKernelEx(&mine, function, parameters, extra);
}
