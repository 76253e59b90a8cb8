// SHA-256 (FIPS 180-4).
#pragma once

#include <stddef.h>

enum { kSha256Bytes = 32, kSha256Digits = 64 };

// Writes the digest as lowercase hexadecimal digits and a terminating zero.
void flash_sha256(const unsigned char *bytes, size_t size, char digits[kSha256Digits + 1]);
