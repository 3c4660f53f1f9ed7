"""Time of a step with batch norm and with BNP: Table 1 and Fig. 9."""
