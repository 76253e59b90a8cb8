# The version stands once, in flash_attn/__init__.py.
set(_init "${CMAKE_CURRENT_SOURCE_DIR}/flash_attn/__init__.py")
file(STRINGS "${_init}" _line REGEX "^__version__ = \"[^\"]+\"")
if(NOT _line MATCHES "\"(([0-9]+\\.[0-9]+\\.[0-9]+)[^\"]*)\"")
  message(FATAL_ERROR "flash_attn/__init__.py has no line __version__ = \"X.Y.Z\", which the build takes its version from.")
endif()
set(FLASH_ATTN_VERSION "${CMAKE_MATCH_1}")
set(FLASH_ATTN_VERSION_NUMBER "${CMAKE_MATCH_2}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_init}")
