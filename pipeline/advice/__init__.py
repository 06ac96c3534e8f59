"""Advice before a job runs: which ways of going faster its model, its host and its requests allow, and what each costs.

Facts are read from files; what is made of them (:mod:`pipeline.advice.mechanisms`) is a function of those facts alone.
Runs no model, and knows nothing of jobs or databases.
"""
