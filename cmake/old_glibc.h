// Symbol versions of the first glibc that had these functions on this architecture; FlashAttnOldGlibc.cmake says why.
#if defined(__x86_64__)
#define FLASH_OLDEST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FLASH_OLDEST_GLIBC "GLIBC_2.17"
#endif

#if defined(FLASH_OLDEST_GLIBC)
__asm__(".symver dlopen,dlopen@" FLASH_OLDEST_GLIBC);
__asm__(".symver dlsym,dlsym@" FLASH_OLDEST_GLIBC);
#endif
