# Defines the targets shm-pool::shm-pool, the shared library, and shm-pool::static. All paths follow from
# the place of this file, PREFIX/share/cmake/shm-pool: the installation may be moved as a whole.
get_filename_component(shm_pool_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# Where the libraries are depends on the system and on the options of `cargo cinstall`.
set(shm_pool_libdir "")
foreach(directory "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib64 lib)
  if(EXISTS "${shm_pool_prefix}/${directory}/pkgconfig/shm-pool.pc")
    set(shm_pool_libdir "${shm_pool_prefix}/${directory}")
    break()
  endif()
endforeach()
if(NOT shm_pool_libdir)
  set(shm-pool_FOUND FALSE)
  set(shm-pool_NOT_FOUND_MESSAGE
    "No pkgconfig/shm-pool.pc in the folders for libraries of ${shm_pool_prefix}")
  return()
endif()

if(EXISTS "${shm_pool_libdir}/libshm_pool.so" AND NOT TARGET shm-pool::shm-pool)
  add_library(shm-pool::shm-pool SHARED IMPORTED)
  set_target_properties(shm-pool::shm-pool PROPERTIES
    IMPORTED_LOCATION "${shm_pool_libdir}/libshm_pool.so"
    INTERFACE_INCLUDE_DIRECTORIES "${shm_pool_prefix}/include")
endif()

if(EXISTS "${shm_pool_libdir}/libshm_pool.a" AND NOT TARGET shm-pool::static)
  # What the static library needs, as the Rust compiler says for its target.
  file(STRINGS "${shm_pool_libdir}/pkgconfig/shm-pool.pc" shm_pool_libraries REGEX "^Libs\\.private:")
  string(REGEX REPLACE "^Libs\\.private:" "" shm_pool_libraries "${shm_pool_libraries}")
  separate_arguments(shm_pool_libraries)
  add_library(shm-pool::static STATIC IMPORTED)
  set_target_properties(shm-pool::static PROPERTIES
    IMPORTED_LOCATION "${shm_pool_libdir}/libshm_pool.a"
    INTERFACE_INCLUDE_DIRECTORIES "${shm_pool_prefix}/include"
    INTERFACE_LINK_LIBRARIES "${shm_pool_libraries}")
endif()
