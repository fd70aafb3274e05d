/* What policy.c learns from waits of different kinds, and what it had better not believe. Run by test_native.py. */
#include "stress.h"

static const int64_t US = 1000, MS = 1000000;

static struct prediction after(struct history *history, int64_t duration) {
    history_learn(history, duration);
    return history_predict(history);
}

static bool is_about(int64_t value, int64_t wanted) { return value > wanted - wanted / 50 && value < wanted + wanted / 50; }

/* Known within three, forgotten within two, one odd one passed over: at all lengths. */
static void steady(void) {
    for (int64_t length = 20 * US; length < 1000 * MS; length *= 3) {
        struct history history = {0};
        REQUIRE(!history_predict(&history).good, "it expects something of a stream that it does not know");
        REQUIRE(!after(&history, length).good && !after(&history, length + length / 100).good, "two waits are not enough");
        struct prediction prediction = after(&history, length);
        REQUIRE(prediction.good && is_about(prediction.mean, length), "not learnt within three: %lld", (long long)length);
        REQUIRE(!prediction.trusted, "trusted after three");
        for (int i = 0; i < 12; i++) prediction = after(&history, length);
        REQUIRE(prediction.trusted && prediction.spread < length / 10, "fifteen equal waits are not trusted");

        for (int kind = 0; kind < 2; kind++) { /* one odd wait, longer and shorter */
            struct prediction odd = after(&history, kind ? length / 5 : 10 * length + 100 * US);
            if (kind && length < 50 * US) continue; /* so near that it is the same */
            REQUIRE(odd.good && is_about(odd.mean, length), "one odd wait of kind %d changed what is expected", kind);
            REQUIRE(odd.trusted == (kind == 0), "an early end must cost the trust, and a late one must not");
            for (int i = 0; i < 10; i++) prediction = after(&history, length);
            REQUIRE(prediction.trusted, "the trust does not come back");
        }

        int64_t other = 4 * length + 200 * US;
        after(&history, other);
        REQUIRE(!after(&history, other).good, "not forgotten after two waits of another length");
        prediction = after(&history, other);
        REQUIRE(!prediction.good || is_about(prediction.mean, other), "it remembers what was forgotten");
        REQUIRE(after(&history, other).good && is_about(history.mean, other), "the new length is not learnt");
    }
    printf("steady: learnt within three, forgotten within two\n");
}

/* Waits of two lengths in turn: the longer must not be trusted, or the shorter is noticed when it is long over. */
static void alternating(void) {
    for (int64_t longer = 300 * US; longer < 300 * MS; longer *= 10) {
        for (int first = 0; first < 2; first++) {
            struct history history = {0};
            int64_t lengths[2] = {first ? longer : longer / 10, first ? longer / 10 : longer};
            for (int i = 0; i < 200; i++) {
                struct prediction prediction = after(&history, lengths[i % 2]);
                REQUIRE(!prediction.trusted || prediction.mean < longer / 5, "%lld us trusted, though each other wait is short",
                        (long long)(prediction.mean / US));
            }
        }
    }
    printf("alternating: the longer of two is not trusted\n");
}

/* Any length between 10 us and 100 ms, each scale as likely as the other. */
static void random_lengths(void) {
    int good = 0, trusted = 0, early = 0, total = 100000;
    struct history history = {0};
    for (int i = 0; i < total; i++) {
        int64_t length = (10 * US) << chance(13);
        length += chance((uint32_t)length);
        struct prediction prediction = history_predict(&history);
        good += prediction.good;
        trusted += prediction.trusted;
        early += prediction.trusted && length < prediction.mean / 2;
        history_learn(&history, length);
    }
    printf("random: %d of %d waits would be expected, %d trusted, of which %d ended long before\n", good, total, trusted, early);
    REQUIRE(good < total / 20, "%d of %d random waits would be expected", good, total);
    REQUIRE(trusted < total / 500 && early * 4 <= trusted + 4, "%d random waits are trusted, %d ended long before", trusted, early);
}

/* The lead grows while the waiter comes too late and shrinks while it waits, and stays within its bounds, also for odd inputs. */
static void leads(void) {
    for (int64_t length = 20 * US; length < 1000 * MS; length *= 7) {
        struct history history = {0};
        for (int i = 0; i < 10; i++) history_learn(&history, length);
        for (int i = 0; i < 100; i++) history_learn_hand_back(&history, true, 0);
        int64_t most = history.lead;
        REQUIRE(most <= length && most > 0, "a lead of %lld ns for a wait of %lld", (long long)most, (long long)length);
        for (int i = 0; i < 1000; i++) history_learn_hand_back(&history, false, history.lead);
        REQUIRE(history.lead < most || length < 50 * US, "the lead does not shrink");
        REQUIRE(history.lead >= 5 * US, "no lead is left");
        history_learn_hand_back(&history, false, 1000 * MS); /* the loop was busy elsewhere */
        REQUIRE(history.lead >= 5 * US && history.lead <= length, "a long absence makes the lead %lld", (long long)history.lead);
        history_learn(&history, 0);
        history_learn(&history, -5 * US); /* an end that was noted before the beginning, by another thread's clock */
        REQUIRE(history_predict(&history).spread >= 0, "a negative spread");
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
