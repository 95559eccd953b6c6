# The version is the header's. Before 1.0, each minor version has an ABI of its own.
get_filename_component(shm_pool_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
file(STRINGS "${shm_pool_prefix}/include/shm_pool.h" shm_pool_version
  REGEX "^#define SHM_POOL_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
string(REGEX REPLACE "#define SHM_POOL_VERSION_[A-Z]+ " "" shm_pool_version "${shm_pool_version}")
string(REPLACE ";" "." PACKAGE_VERSION "${shm_pool_version}")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" shm_pool_installed "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" shm_pool_requested "${PACKAGE_FIND_VERSION}")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(shm_pool_requested STREQUAL "" OR shm_pool_requested STREQUAL shm_pool_installed)
  if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
endif()
if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
