function(esp_use_torch target)
  message(FATAL_ERROR "libtorch support is not configured")
endfunction()
