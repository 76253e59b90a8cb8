# Reads csrc/flash_attn/kernels.json, the one list of kernels, and derives from it, in the list's order:
#   FLASH_ATTN_FATBINS               fatbin names without ending, one a (family, head dimension, dtype)
#   kernel_sources/NAME.cu           the source of each
#   generated/flash_attn_kernel_table.inc   the launcher's table, one line a kernel
#   generated/kernel_list.json       the same for manifest.py
#
# A kernel is FAMILY_hdimD_DTYPE for the family's first variant; other variants and the stages (helper kernels that each
# tile has beside its variants) append their name, and the second, smaller tile of a head dimension appends _small.

set(FLASH_ATTN_KERNELS_JSON "${CMAKE_CURRENT_SOURCE_DIR}/csrc/flash_attn/kernels.json")
set(FLASH_ATTN_GENERATED_DIR "${CMAKE_CURRENT_BINARY_DIR}/generated")
set(FLASH_ATTN_KERNEL_SOURCES_DIR "${CMAKE_CURRENT_BINARY_DIR}/kernel_sources")
set(FLASH_ATTN_KERNEL_LIST "${FLASH_ATTN_GENERATED_DIR}/kernel_list.json")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${FLASH_ATTN_KERNELS_JSON}")

# Leaves the file alone when it already says this, so that nothing is compiled again.
function(_flash_attn_write file text)
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY NEWLINE_STYLE LF)
endfunction()

# The JSON array (or the keys of the object) at a path, as a list; empty when it isn't there.
function(_flash_attn_json_list result json)
  set(_items "")
  string(JSON _type ERROR_VARIABLE _missing TYPE "${json}" ${ARGN})
  if(NOT _missing)
    string(JSON _length LENGTH "${json}" ${ARGN})
    if(_length GREATER 0)
      math(EXPR _last "${_length} - 1")
      foreach(_i RANGE ${_last})
        if(_type STREQUAL "OBJECT")
          string(JSON _item MEMBER "${json}" ${ARGN} ${_i})
        else()
          string(JSON _item GET "${json}" ${ARGN} ${_i})
        endif()
        list(APPEND _items "${_item}")
      endforeach()
    endif()
  endif()
  set(${result} "${_items}" PARENT_SCOPE)
endfunction()

# One family: appends to _table, _list and FLASH_ATTN_FATBINS, and writes the sources.
function(_flash_attn_family json family)
  string(JSON _family_json GET "${json}" families "${family}")
  string(JSON _header GET "${_family_json}" header)
  _flash_attn_json_list(_variants "${_family_json}" variants)
  _flash_attn_json_list(_dtypes "${json}" dtypes)
  _flash_attn_json_list(_stages_json "${_family_json}" stages)
  string(JSON _tile_count LENGTH "${_family_json}" tiles)
  math(EXPR _last_tile "${_tile_count} - 1")

  set(_stages "")
  foreach(_stage_json IN LISTS _stages_json)
    string(JSON _stage GET "${_stage_json}" name)
    string(JSON _header_${_stage} GET "${_stage_json}" header)
    list(APPEND _stages "${_stage}")
  endforeach()

  list(GET _variants 0 _first_variant)
  foreach(_variant IN LISTS _variants)
    set(_header_${_variant} "${_header}")
  endforeach()

  set(_fatbins "")
  foreach(_i RANGE ${_last_tile})
    foreach(_key IN ITEMS head_dim block_m block_n warps smem_bytes)
      string(JSON _${_key} GET "${_family_json}" tiles ${_i} ${_key})
    endforeach()
    string(JSON _spill ERROR_VARIABLE _no_spill GET "${_family_json}" tiles ${_i} spill_bytes)
    if(_no_spill)
      set(_spill 0)
    endif()

    math(EXPR _tiles_of_${_head_dim} "0${_tiles_of_${_head_dim}} + 1")
    if(_tiles_of_${_head_dim} EQUAL 1)
      set(_suffix "")
    elseif(_tiles_of_${_head_dim} EQUAL 2)
      set(_suffix "_small")
    else()
      message(FATAL_ERROR "kernels.json lists ${_tiles_of_${_head_dim}} tiles of ${family} for head dimension ${_head_dim}; "
                          "at most two have a name.")
    endif()

    foreach(_dtype IN LISTS _dtypes)
      string(JSON _element GET "${json}" dtypes "${_dtype}")
      set(_fatbin "${family}_hdim${_head_dim}_${_dtype}")
      if(NOT _fatbin IN_LIST _fatbins)
        list(APPEND _fatbins "${_fatbin}")
      endif()
      foreach(_variant IN LISTS _variants _stages)
        set(_kernel "${_fatbin}")
        if(NOT _variant STREQUAL _first_variant)
          string(APPEND _kernel "_${_variant}")
        endif()
        string(APPEND _kernel "${_suffix}")
        if(_variant IN_LIST _stages)
          set(_is_stage true)
        else()
          set(_is_stage false)
        endif()

        set(_shape "${_block_m}, ${_block_n}, ${_warps}, ${_smem_bytes}")
        string(APPEND "_lines_${_fatbin}_${_header_${_variant}}" "FLASH_KERNEL(${_kernel}, ${_element}, ${_head_dim}, ${_shape}, ${_variant})\n")
        string(APPEND _table "FLASH_ATTN_KERNEL(\"${_kernel}\", \"${family}\", ${_head_dim}, \"${_dtype}\", "
                             "\"${_variant}\", ${_shape})\n")
        string(APPEND _list ",\n{\"fatbin\": \"${_fatbin}.fatbin\", \"name\": \"${_kernel}\", \"family\": \"${family}\", "
                            "\"head_dim\": ${_head_dim}, \"dtype\": \"${_dtype}\", \"variant\": \"${_variant}\", "
                            "\"stage\": ${_is_stage}, \"block_m\": ${_block_m}, \"block_n\": ${_block_n}, "
                            "\"warps\": ${_warps}, \"smem_bytes\": ${_smem_bytes}, \"spill_bytes\": ${_spill}}")
      endforeach()
    endforeach()
  endforeach()

  set(_headers "${_header}")
  foreach(_stage IN LISTS _stages)
    list(APPEND _headers "${_header_${_stage}}")
  endforeach()
  list(REMOVE_DUPLICATES _headers)
  foreach(_fatbin IN LISTS _fatbins)
    # Each header says what FLASH_KERNEL means for its kernels.
    set(_source "")
    foreach(_one_header IN LISTS _headers)
      if(_source)
        string(APPEND _source "#undef FLASH_KERNEL\n")
      endif()
      string(APPEND _source "#include \"${_one_header}\"\n${_lines_${_fatbin}_${_one_header}}")
    endforeach()
    _flash_attn_write("${FLASH_ATTN_KERNEL_SOURCES_DIR}/${_fatbin}.cu" "${_source}")
  endforeach()
  list(APPEND FLASH_ATTN_FATBINS ${_fatbins})
  return(PROPAGATE FLASH_ATTN_FATBINS _table _list)
endfunction()

file(READ "${FLASH_ATTN_KERNELS_JSON}" _json)
_flash_attn_json_list(_families "${_json}" families)
set(FLASH_ATTN_FATBINS "")
set(_table "")
set(_list "")
foreach(_family IN LISTS _families)
  _flash_attn_family("${_json}" "${_family}")
endforeach()
string(REGEX REPLACE "^,\n" "" _list "${_list}")
_flash_attn_write("${FLASH_ATTN_GENERATED_DIR}/flash_attn_kernel_table.inc" "${_table}")
_flash_attn_write("${FLASH_ATTN_KERNEL_LIST}" "[\n${_list}\n]\n")
