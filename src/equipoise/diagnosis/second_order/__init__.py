"""What second-order pooling does to spectra."""
