/* Preloaded into all that a sandbox starts: its TCP connections send each write immediately.
 *
 * slurmdbd and its clients write a message's length and the message separately. In Slurm 22.05 they
 * leave Nagle's algorithm on: the second write waits until the first is acknowledged, which Linux
 * delays by 40 ms, so that `sacctmgr show qos` takes 0.36 s. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
    int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    int made = next(domain, type, protocol);
    int on = 1;
    int kind = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);
    /* Connections that a listening socket accepts inherit the option. */
    if (made >= 0 && kind == SOCK_STREAM && (domain == AF_INET || domain == AF_INET6))
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
}
