#include "flash_attn.h"

uint32_t flash_attn_abi_version(void) { return FLASH_ATTN_ABI_VERSION; }
