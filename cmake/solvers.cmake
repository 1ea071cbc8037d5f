# What placers ask: CLP for linear programs, METIS and Scotch for partitions (docs/decisions.md). Headers of none of
# them are seen outside espalier/planners.
foreach(solver "clp;coin/Clp_C_Interface.h;Clp;coinor-libclp-dev" "metis;metis.h;metis;libmetis-dev"
               "scotch;scotch/scotch.h;scotch;libscotch-dev")
  list(GET solver 0 name)
  list(GET solver 1 header)
  list(GET solver 2 library)
  list(GET solver 3 package)
  find_path(ESPALIER_${name}_INCLUDE ${header})
  find_library(ESPALIER_${name}_LIBRARY ${library})
  mark_as_advanced(ESPALIER_${name}_INCLUDE ESPALIER_${name}_LIBRARY)
  if(NOT ESPALIER_${name}_INCLUDE OR NOT ESPALIER_${name}_LIBRARY)
    message(FATAL_ERROR "${library} was not found: install ${package} (scripts/setup does), or set "
      "ESPALIER_${name}_INCLUDE to the folder of <${header}> and ESPALIER_${name}_LIBRARY to the library")
  endif()
endforeach()
set(ESPALIER_SOLVERS ${ESPALIER_clp_LIBRARY} ${ESPALIER_metis_LIBRARY} ${ESPALIER_scotch_LIBRARY} scotcherr)
