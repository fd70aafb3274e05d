/* What forecast.c learns from waits of different kinds, and what it had better not believe. Run by test_native.py. */
#include "stress.h"

static const int64_t US = 1000, MS = 1000000;

static struct outlook after(struct forecast *forecast, int64_t duration) {
    forecast_learn(forecast, duration);
    return forecast_outlook(forecast);
}

static bool is_about(int64_t value, int64_t wanted) { return value > wanted - wanted / 50 && value < wanted + wanted / 50; }

/* Known within three, forgotten within two, one odd one passed over: at all lengths. */
static void steady(void) {
    for (int64_t length = 20 * US; length < 1000 * MS; length *= 3) {
        struct forecast forecast = {0};
        REQUIRE(!forecast_outlook(&forecast).good, "it expects something of a stream that it does not know");
        REQUIRE(!after(&forecast, length).good && !after(&forecast, length + length / 100).good, "two waits are not enough");
        struct outlook outlook = after(&forecast, length);
        REQUIRE(outlook.good && is_about(outlook.mean, length), "not learnt within three: %lld", (long long)length);
        REQUIRE(!outlook.trusted, "trusted after three");
        for (int i = 0; i < 12; i++) outlook = after(&forecast, length);
        REQUIRE(outlook.trusted && outlook.spread < length / 10, "fifteen equal waits are not trusted");

        for (int kind = 0; kind < 2; kind++) { /* one odd wait, longer and shorter */
            struct outlook odd = after(&forecast, kind ? length / 5 : 10 * length + 100 * US);
            if (kind && length < 50 * US) continue; /* so near that it is the same */
            REQUIRE(odd.good && is_about(odd.mean, length), "one odd wait of kind %d changed what is expected", kind);
            REQUIRE(odd.trusted == (kind == 0), "an early end must cost the trust, and a late one must not");
            for (int i = 0; i < 10; i++) outlook = after(&forecast, length);
            REQUIRE(outlook.trusted, "the trust does not come back");
        }

        int64_t other = 4 * length + 200 * US;
        after(&forecast, other);
        REQUIRE(!after(&forecast, other).good, "not forgotten after two waits of another length");
        outlook = after(&forecast, other);
        REQUIRE(!outlook.good || is_about(outlook.mean, other), "it remembers what was forgotten");
        REQUIRE(after(&forecast, other).good && is_about(forecast.mean, other), "the new length is not learnt");
    }
    printf("steady: learnt within three, forgotten within two\n");
}

/* Waits of two lengths in turn: the longer must not be trusted, or the shorter is noticed when it is long over. */
static void alternating(void) {
    for (int64_t longer = 300 * US; longer < 300 * MS; longer *= 10) {
        for (int first = 0; first < 2; first++) {
            struct forecast forecast = {0};
            int64_t lengths[2] = {first ? longer : longer / 10, first ? longer / 10 : longer};
            for (int i = 0; i < 200; i++) {
                struct outlook outlook = after(&forecast, lengths[i % 2]);
                REQUIRE(!outlook.trusted || outlook.mean < longer / 5, "%lld us trusted, though each other wait is short",
                        (long long)(outlook.mean / US));
            }
        }
    }
    printf("alternating: the longer of two is not trusted\n");
}

/* Any length between 10 us and 100 ms, each scale as likely as the other. */
static void random_lengths(void) {
    int good = 0, trusted = 0, early = 0, total = 100000;
    struct forecast forecast = {0};
    for (int i = 0; i < total; i++) {
        int64_t length = (10 * US) << chance(13);
        length += chance((uint32_t)length);
        struct outlook outlook = forecast_outlook(&forecast);
        good += outlook.good;
        trusted += outlook.trusted;
        early += outlook.trusted && length < outlook.mean / 2;
        forecast_learn(&forecast, length);
    }
    printf("random: %d of %d waits would be expected, %d trusted, of which %d ended long before\n", good, total, trusted, early);
    REQUIRE(good < total / 20, "%d of %d random waits would be expected", good, total);
    REQUIRE(trusted < total / 500 && early * 4 <= trusted + 4, "%d random waits are trusted, %d ended long before", trusted, early);
}

/* The lead grows while the waiter comes too late and shrinks while it waits, and stays within its bounds, also for odd inputs. */
static void leads(void) {
    for (int64_t length = 20 * US; length < 1000 * MS; length *= 7) {
        struct forecast forecast = {0};
        for (int i = 0; i < 10; i++) forecast_learn(&forecast, length);
        for (int i = 0; i < 100; i++) forecast_approached(&forecast, true, 0);
        int64_t most = forecast.lead;
        REQUIRE(most <= length && most > 0, "a lead of %lld ns for a wait of %lld", (long long)most, (long long)length);
        for (int i = 0; i < 1000; i++) forecast_approached(&forecast, false, forecast.lead);
        REQUIRE(forecast.lead < most || length < 50 * US, "the lead does not shrink");
        REQUIRE(forecast.lead >= 5 * US, "no lead is left");
        forecast_approached(&forecast, false, 1000 * MS); /* the loop was busy elsewhere */
        REQUIRE(forecast.lead >= 5 * US && forecast.lead <= length, "a long absence makes the lead %lld", (long long)forecast.lead);
        forecast_learn(&forecast, 0);
        forecast_learn(&forecast, -5 * US); /* an end that was noted before the beginning, by another thread's clock */
        REQUIRE(forecast_outlook(&forecast).spread >= 0, "a negative spread");
    }
    printf("leads: within their bounds\n");
}

int main(void) {
    seed_thread(1, 1);
    steady();
    alternating();
    random_lengths();
    leads();
    return 0;
}
