/* Makes a program see an older x86-64 CPU: loaded with LD_PRELOAD, it hides what is newer than ONEDNN_MAX_CPU_ISA says.
 *
 * oneDNN keeps to that limit by itself, but kernels that look at the CPU themselves (ONNX Runtime's, PyTorch's own, what
 * a compiler makes with -march=native) do not. Many CPUs can trap the CPUID instruction ("cpuid_fault" in
 * /proc/cpuinfo): the program gets SIGSEGV instead of an answer. The handler here asks the CPU, clears the bits of newer
 * instructions, and goes on behind the trapped one. All else runs at full speed. older_cpu.py compiles and loads it.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef ARCH_SET_CPUID
#define ARCH_SET_CPUID 0x1012
#endif
#define BIT(n) (1u << (n))

/* From the oldest to the newest; each CPU has what those before it have, except for AVX2_VNNI's. */
enum level { AVX2, AVX2_VNNI, AVX512, VNNI, BF16, FP16, ALL };

static enum level level_of(const char *name) {
    static const struct { const char *name; enum level level; } names[] = {
        {"AVX2", AVX2},        {"AVX2_VNNI", AVX2_VNNI},    {"AVX512_CORE", AVX512}, {"AVX512_CORE_VNNI", VNNI},
        {"AVX512_CORE_BF16", BF16}, {"AVX512_CORE_FP16", FP16},
    };
    for (size_t i = 0; name != NULL && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].level;
    return ALL;
}

static enum level level = ALL;

static void hide(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    if (leaf == 7 && subleaf == 0) {
        *d &= ~(BIT(22) | BIT(24) | BIT(25)); /* AMX: BF16, TILE, INT8 */
        if (level < FP16)
            *d &= ~(BIT(8) | BIT(23)); /* AVX512: VP2INTERSECT, FP16 */
        if (level < VNNI)
            *c &= ~(BIT(1) | BIT(6) | BIT(8) | BIT(11) | BIT(12) | BIT(14)); /* VBMI, VBMI2, GFNI, VNNI, BITALG, VPOPCNTDQ */
        if (level < AVX512) {
            *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)); /* AVX512: all */
            *d &= ~(BIT(2) | BIT(3)); /* 4VNNIW, 4FMAPS */
        }
    } else if (leaf == 7 && subleaf == 1) {
        *a &= ~(BIT(21) | BIT(23)); /* AMX_FP16, AVX_IFMA */
        *d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19)); /* AVX_VNNI_INT8, NE_CONVERT, AMX_COMPLEX, VNNI_INT16, AVX10 */
        if (level < BF16)
            *a &= ~BIT(5); /* AVX512_BF16 */
        if (level < FP16 && level != AVX2_VNNI)
            *a &= ~BIT(4); /* AVX_VNNI, which the CPUs with AVX512 that are meant here did not have */
    } else if (leaf == 0xd && subleaf == 0) {
        *a &= ~(BIT(17) | BIT(18)); /* registers of AMX */
        if (level < AVX512)
            *a &= ~(BIT(5) | BIT(6) | BIT(7));
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) { /* tiles; AVX10 */
        *a = *b = *c = *d = 0;
    }
}

static void trap_cpuid(int on) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, on ? 0L : 1L); }

typedef int (*sigaction_fn)(int, const struct sigaction *, struct sigaction *);
typedef int (*sigmask_fn)(int, const sigset_t *, sigset_t *);

static sigaction_fn real_sigaction;
static sigmask_fn real_sigprocmask, real_pthread_sigmask;
static struct sigaction programs_own; /* what the program wants done about SIGSEGV */
static pid_t owner;                  /* a child of vfork() writes to its parent's memory, and must not */

static void note_owner(void) { owner = getpid(); }

static void on_segv(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    /* SI_KERNEL: not a bad address, so what the program was executing can be read */
    if (info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX], a, b, c, d;
        trap_cpuid(0);
        __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(subleaf));
        trap_cpuid(1);
        hide(leaf, subleaf, &a, &b, &c, &d);
        registers[REG_RAX] = a;
        registers[REG_RBX] = b;
        registers[REG_RCX] = c;
        registers[REG_RDX] = d;
        registers[REG_RIP] += 2;
    } else if (programs_own.sa_flags & SA_SIGINFO) {
        programs_own.sa_sigaction(number, info, context);
    } else if (programs_own.sa_handler != SIG_DFL && programs_own.sa_handler != SIG_IGN) {
        programs_own.sa_handler(number);
    } else { /* the instruction runs again, and ends the process */
        struct sigaction usual = {.sa_handler = SIG_DFL};
        real_sigaction(SIGSEGV, &usual, NULL);
    }
}

__attribute__((constructor)) static void begin(void) {
    real_sigaction = (sigaction_fn)dlsym(RTLD_NEXT, "sigaction");
    real_sigprocmask = (sigmask_fn)dlsym(RTLD_NEXT, "sigprocmask");
    real_pthread_sigmask = (sigmask_fn)dlsym(RTLD_NEXT, "pthread_sigmask");
    enum level wanted = level_of(getenv("ONEDNN_MAX_CPU_ISA"));
    if (wanted == ALL)
        return;
    struct sigaction ours = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    real_sigaction(SIGSEGV, &ours, &programs_own);
    sigset_t segv;
    sigemptyset(&segv);
    sigaddset(&segv, SIGSEGV);
    real_sigprocmask(SIG_UNBLOCK, &segv, NULL);
    note_owner();
    pthread_atfork(NULL, NULL, note_owner);
    level = wanted;
    trap_cpuid(1); /* this thread, and those that it starts */
}

/* A program may handle SIGSEGV after the handler above, but neither replace nor block it. */

int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    if (real_sigaction == NULL) /* called by another library's constructor */
        real_sigaction = (sigaction_fn)dlsym(RTLD_NEXT, "sigaction");
    if (level == ALL || number != SIGSEGV)
        return real_sigaction(number, new, old);
    if (old != NULL)
        *old = programs_own;
    if (new != NULL && getpid() == owner)
        programs_own = *new;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &new, &old) == 0 ? old.sa_handler : SIG_ERR;
}

static int without_segv(sigmask_fn real, int how, const sigset_t *set, sigset_t *old) {
    if (level == ALL || set == NULL || how == SIG_UNBLOCK)
        return real(how, set, old);
    sigset_t others = *set;
    sigdelset(&others, SIGSEGV);
    return real(how, &others, old);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old) {
    if (real_sigprocmask == NULL)
        real_sigprocmask = (sigmask_fn)dlsym(RTLD_NEXT, "sigprocmask");
    return without_segv(real_sigprocmask, how, set, old);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    if (real_pthread_sigmask == NULL)
        real_pthread_sigmask = (sigmask_fn)dlsym(RTLD_NEXT, "pthread_sigmask");
    return without_segv(real_pthread_sigmask, how, set, old);
}
